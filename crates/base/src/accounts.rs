//! The users and groups in a sandbox: the host's system accounts and one regular user, `user`. The system accounts keep
//! file owners resolvable, and maintainer scripts find the users they expect. Passwords, the host's regular users and
//! their group memberships are left out.

use std::collections::BTreeSet;
use std::fmt::Write;

/// The id of `user`, the only regular user in a sandbox.
pub(super) const USER_ID: u32 = 1000;
/// The first id of regular users, on all distributions we know.
const FIRST_REGULAR_ID: u32 = 1000;
/// The id of `nobody` and `nogroup`.
const NOBODY_ID: u32 = 65_534;
/// The id of the group `sudo` on Debian and its derivatives.
const DEBIAN_SUDO_ID: u32 = 27;
/// The day of the last password change. Zero would force a new password at every login.
const PASSWORD_CHANGED_DAY: u32 = 20_000;

/// The contents of the four account files, and the accounts by name.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Accounts {
    pub(super) passwd: String,
    pub(super) group: String,
    pub(super) shadow: String,
    pub(super) gshadow: String,
    users: Vec<User>,
    groups: Vec<Group>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct User {
    name: String,
    uid: u32,
    gid: u32,
    home: String,
    shell: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Group {
    name: String,
    gid: u32,
    members: Vec<String>,
}

impl Accounts {
    /// Derives the accounts from the contents of the host's `passwd` and `group`.
    pub(super) fn new(host_passwd: &str, host_group: &str) -> Self {
        let users = users(host_passwd);
        let groups = groups(host_group, &users);
        Self {
            passwd: passwd_file(&users),
            group: group_file(&groups),
            shadow: shadow_file(&users),
            gshadow: gshadow_file(&groups),
            users,
            groups,
        }
    }

    /// The id of the user with this name.
    pub(super) fn uid(&self, name: &str) -> Option<u32> {
        self.users.iter().find(|user| user.name == name).map(|user| user.uid)
    }

    /// The id of the group with this name.
    pub(super) fn gid(&self, name: &str) -> Option<u32> {
        self.groups.iter().find(|group| group.name == name).map(|group| group.gid)
    }
}

fn users(host_passwd: &str) -> Vec<User> {
    let account = |name: &str, uid, home: &str, shell: &str| User {
        name: name.to_owned(),
        uid,
        gid: uid,
        home: home.to_owned(),
        shell: shell.to_owned(),
    };
    let mut users = vec![account("root", 0, "/root", "/bin/bash")];
    let ours = ["root", "user", "nobody"];
    let mut system: Vec<User> = host_passwd.lines().filter_map(system_user).collect();
    system.retain(|user| !ours.contains(&user.name.as_str()));
    system.sort_by_key(|user| user.uid);
    system.dedup_by(|a, b| a.name == b.name);
    users.extend(system);
    users.push(account("user", USER_ID, "/home/user", "/bin/bash"));
    users.push(account("nobody", NOBODY_ID, "/nonexistent", NOLOGIN));
    users
}

const NOLOGIN: &str = "/usr/sbin/nologin";
/// Shells that system accounts keep. `su postgres` needs one, and a maintainer script leaves an account that exists as it is.
/// Nobody can log in: every password is locked.
const KEPT_SHELLS: &[&str] = &["/bin/bash", "/bin/sh", "/bin/sync", "/usr/bin/bash", "/usr/bin/sh"];

/// Parses a line of the host's `passwd`. Returns `None` for regular users and for lines that are not accounts.
fn system_user(line: &str) -> Option<User> {
    let fields: Vec<&str> = line.split(':').collect();
    let [name, _password, uid, gid, _comment, home, shell] = fields[..] else { return None };
    let (uid, gid) = (system_id(uid)?, system_id(gid)?);
    let home = if home.starts_with('/') && !home.starts_with("/home/") { home } else { "/nonexistent" };
    let shell = if KEPT_SHELLS.contains(&shell) { shell } else { NOLOGIN };
    (is_name(name) && uid != 0 && uid < FIRST_REGULAR_ID).then(|| User {
        name: name.to_owned(),
        uid,
        gid,
        home: home.to_owned(),
        shell: shell.to_owned(),
    })
}

fn system_id(text: &str) -> Option<u32> {
    let id: u32 = text.parse().ok()?;
    (id < FIRST_REGULAR_ID || id == NOBODY_ID).then_some(id)
}

fn groups(host_group: &str, users: &[User]) -> Vec<Group> {
    let mut groups: Vec<Group> = host_group.lines().filter_map(|line| system_group(line, users)).collect();
    groups.retain(|group| group.name != "root" && group.name != "user");
    groups.sort_by_key(|group| group.gid);
    let mut seen = BTreeSet::new();
    groups.retain(|group| seen.insert(group.name.clone()));
    groups.insert(0, Group { name: "root".to_owned(), gid: 0, members: Vec::new() });
    ensure_sudo(&mut groups);
    groups.push(Group { name: "user".to_owned(), gid: USER_ID, members: Vec::new() });
    if !groups.iter().any(|group| group.gid == NOBODY_ID) {
        groups.push(Group { name: "nogroup".to_owned(), gid: NOBODY_ID, members: Vec::new() });
    }
    groups
}

fn system_group(line: &str, users: &[User]) -> Option<Group> {
    let fields: Vec<&str> = line.split(':').collect();
    let [name, _password, gid, members] = fields[..] else { return None };
    let gid = system_id(gid)?;
    let is_known = |member: &&str| *member != "user" && users.iter().any(|user| user.name == **member);
    let members = members.split(',').filter(is_known).map(str::to_owned).collect();
    (is_name(name) && gid != 0).then(|| Group { name: name.to_owned(), gid, members })
}

/// Ensures that the group `sudo` exists, which some hosts lack, and that `user` is its only member.
fn ensure_sudo(groups: &mut Vec<Group>) {
    if !groups.iter().any(|group| group.name == "sudo") {
        let taken: BTreeSet<u32> = groups.iter().map(|group| group.gid).collect();
        let free =
            std::iter::once(DEBIAN_SUDO_ID).chain((100..FIRST_REGULAR_ID).rev()).find(|gid| !taken.contains(gid));
        let Some(gid) = free else { return };
        groups.push(Group { name: "sudo".to_owned(), gid, members: Vec::new() });
    }
    for group in groups.iter_mut().filter(|group| group.name == "sudo") {
        group.members = vec!["user".to_owned()];
    }
}

/// Whether shadow's tools accept the name. They reject NIS lines (`+`, `-`) and comments.
fn is_name(name: &str) -> bool {
    let first = name.chars().next().is_some_and(|c| c.is_ascii_alphabetic() || c == '_');
    first && name.len() <= 32 && name.chars().all(|c| c.is_ascii_alphanumeric() || "_-.$".contains(c))
}

fn passwd_file(users: &[User]) -> String {
    users.iter().fold(String::new(), |mut out, User { name, uid, gid, home, shell }| {
        writeln!(out, "{name}:x:{uid}:{gid}:{}:{home}:{shell}", if *uid == 0 { "root" } else { "" })
            .expect("writing to a string cannot fail");
        out
    })
}

fn group_file(groups: &[Group]) -> String {
    groups.iter().map(|group| format!("{}:x:{}:{}\n", group.name, group.gid, group.members.join(","))).collect()
}

fn shadow_file(users: &[User]) -> String {
    users.iter().map(|user| format!("{}:*:{PASSWORD_CHANGED_DAY}:0:99999:7:::\n", user.name)).collect()
}

fn gshadow_file(groups: &[Group]) -> String {
    groups.iter().map(|group| format!("{}:*::{}\n", group.name, group.members.join(","))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &str = "root:x:0:0:root:/root:/bin/zsh\n_apt:x:42:65534::/nonexistent:/usr/sbin/nologin\n\
        postgres:x:101:104:Admin,,,:/var/lib/postgresql:/bin/bash\nalice:x:1000:1000:Alice:/home/alice:/bin/bash\n\
        evil:x:0:0::/:/bin/sh\n+nis::::::\nsvc:x:990:990::/home/svc:/opt/svc/shell\nuser:x:200:200::/x:/bin/sh\nshort:x:5\n\
        bad name:x:6:6::/:/bin/sh\nhuge:x:99999999999:1::/:/bin/sh\n";
    const GROUP: &str =
        "root:x:0:alice\nssl-cert:x:105:postgres,alice\ndocker:x:999:alice\nalice:x:1000:\nnobody:x:65534:\n";

    #[test]
    fn people_of_the_host_and_their_memberships_stay_outside() {
        let accounts = Accounts::new(PASSWD, GROUP);
        for file in [&accounts.passwd, &accounts.group, &accounts.shadow, &accounts.gshadow] {
            assert!(!file.contains("alice") && !file.contains("evil") && !file.contains("nis"), "{file}");
        }
        assert!(accounts.group.contains("ssl-cert:x:105:postgres\n"));
        assert_eq!(accounts.passwd.matches(":0:0:").count(), 1);
    }

    #[test]
    fn system_users_keep_the_usual_shells_and_no_others() {
        let accounts = Accounts::new(PASSWD, GROUP);
        assert!(accounts.passwd.contains("postgres:x:101:104::/var/lib/postgresql:/bin/bash\n"));
        assert!(accounts.passwd.contains("svc:x:990:990::/nonexistent:/usr/sbin/nologin\n"));
        assert_eq!(accounts.uid("_apt"), Some(42));
    }

    #[test]
    fn user_exists_and_may_use_sudo() {
        let accounts = Accounts::new(PASSWD, GROUP);
        assert!(accounts.passwd.contains("user:x:1000:1000::/home/user:/bin/bash\n"));
        assert!(accounts.group.contains("sudo:x:27:user\n"));
        assert_eq!(accounts.passwd.matches("\nuser:").count(), 1);
    }

    #[test]
    fn a_taken_sudo_id_is_avoided() {
        let accounts = Accounts::new("", "fax:x:27:\n");
        assert!(accounts.group.contains("fax:x:27:\n"));
        assert!(accounts.group.contains("sudo:x:999:user\n"));
    }

    #[test]
    fn every_password_is_locked_even_without_a_host() {
        let accounts = Accounts::new("", "");
        assert!(accounts.shadow.lines().all(|line| line.split(':').nth(1) == Some("*")));
        assert!(accounts.group.contains("nogroup:x:65534:\n"));
    }
}
