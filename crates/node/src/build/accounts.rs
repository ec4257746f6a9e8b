//! Users and groups of a file tree, read from its own `/etc/passwd` and `/etc/group`.

use super::step_error::StepError;
use super::view::{FileOwner, View};

/// The fields of a line of `/etc/passwd` that a build needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Account {
    pub(super) name: String,
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) home: String,
}

/// Finds the user of a `USER` instruction: a name or a number, optionally with a group.
pub(super) fn find_user(view: &View, text: &str) -> Result<Account, StepError> {
    let (user, group) = text.split_once(':').map_or((text, None), |(user, group)| (user, Some(group)));
    let passwd = view.read_small("/etc/passwd");
    let account = accounts(&passwd).find(|account| is_called(&account.name, account.uid, user));
    let account = account.ok_or_else(|| StepError::invalid(format!("there is no user {user:?} in /etc/passwd")))?;
    let Some(group) = group else { return Ok(account) };
    match find_group(view, group) {
        Some(gid) if gid == account.gid => Ok(account),
        Some(_) => Err(StepError::invalid(format!("USER {text}: a group other than the user's own is not supported"))),
        None => Err(StepError::invalid(format!("there is no group {group:?} in /etc/group"))),
    }
}

/// Finds the owner that `--chown` names. A number needs no account.
pub(super) fn find_owner(view: &View, text: &str) -> Result<FileOwner, StepError> {
    let (user, group) = text.split_once(':').map_or((text, None), |(user, group)| (user, Some(group)));
    let passwd = view.read_small("/etc/passwd");
    let account = accounts(&passwd).find(|account| is_called(&account.name, account.uid, user));
    let (uid, own_gid) = match (account, user.parse::<u32>()) {
        (Some(account), _) => (account.uid, account.gid),
        (None, Ok(number)) if number <= 65_535 => (number, number),
        _ => return Err(StepError::invalid(format!("there is no user {user:?} in /etc/passwd"))),
    };
    let gid = match group {
        None | Some("") => own_gid,
        Some(group) => {
            let number = group.parse().ok().filter(|number| *number <= 65_535);
            let found = find_group(view, group).or(number);
            found.ok_or_else(|| StepError::invalid(format!("there is no group {group:?} in /etc/group")))?
        }
    };
    Ok(FileOwner { uid, gid })
}

fn find_group(view: &View, wanted: &str) -> Option<u32> {
    let group = view.read_small("/etc/group");
    group.lines().find_map(|line| {
        let mut fields = line.split(':');
        let (name, gid) = (fields.next()?, fields.nth(1)?.parse().ok()?);
        is_called(name, gid, wanted).then_some(gid)
    })
}

pub(super) fn accounts(passwd: &str) -> impl Iterator<Item = Account> + '_ {
    passwd.lines().filter_map(|line| {
        let fields: Vec<&str> = line.split(':').collect();
        let [name, _, uid, gid, _, home, _] = fields[..] else { return None };
        let (uid, gid) = (uid.parse().ok()?, gid.parse().ok()?);
        Some(Account { name: name.to_owned(), uid, gid, home: home.to_owned() })
    })
}

fn is_called(name: &str, id: u32, wanted: &str) -> bool {
    !wanted.is_empty() && (name == wanted || wanted.parse() == Ok(id))
}
