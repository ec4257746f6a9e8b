//! Adds the user of an SDK's `USER` step, as E2B's builder does. The `USER` of a Dockerfile that the node builds itself
//! must exist, as in Docker.
//!
//! The files are changed from outside, because an image may have neither `useradd` nor `adduser`.

use std::io;
use std::path::Path;

use super::account_files::{add_line, add_shadow, add_to_sudo, write};
use super::accounts::{accounts, find_user};
use super::step_error::StepError;
use super::view::{FileOwner, View, Writer};

/// The ids that users get, as in Debian.
const MIN_ID: u32 = 1000;
const MAX_ID: u32 = 59_999;
/// What `useradd` accepts.
const MAX_NAME_CHARS: usize = 32;
/// For images with the real sudo. The sandbox's own asks only for the group.
const SUDOERS: &str = "/etc/sudoers.d/isopod";

/// Adds a user if it is missing, and gives it the right to use sudo if asked. Blocks.
pub(super) fn ensure_user(view: &View, name: &str, can_sudo: bool) -> Result<(), StepError> {
    let failed = |error: io::Error| StepError::internal("change the template's users", error);
    let found = find_user(view, name);
    if found.is_err() && !is_user_name(name) {
        return Err(StepError::invalid(format!("{name:?} is not a user name")));
    }
    let mut writer = view.writer().map_err(failed)?;
    let name = match found {
        Ok(account) => account.name,
        Err(_) => {
            add_user(view, &mut writer, name).map_err(failed)?;
            name.to_owned()
        }
    };
    if can_sudo {
        allow_sudo(view, &mut writer, &name).map_err(failed)?;
    }
    Ok(())
}

/// Whether a new user may have this name. The name becomes part of lines and of a path.
fn is_user_name(name: &str) -> bool {
    let starts_well = name.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_');
    let is_allowed = |character: char| character.is_ascii_alphanumeric() || "_-.".contains(character);
    starts_well && name.len() <= MAX_NAME_CHARS && name.chars().all(is_allowed)
}

fn add_user(view: &View, writer: &mut Writer<'_>, name: &str) -> io::Result<()> {
    let mut passwd = view.read_small("/etc/passwd");
    let mut group = view.read_small("/etc/group");
    let own_group = groups(&group).find(|(known, _)| *known == name).map(|(_, gid)| gid);
    let id = free_id(&passwd, &group).ok_or_else(|| io::Error::other("all user ids are taken"))?;
    let owner = FileOwner { uid: id, gid: own_group.unwrap_or(id) };
    let shell = if view.exists("/bin/bash") { "/bin/bash" } else { "/bin/sh" };
    add_line(&mut passwd, &format!("{name}:x:{}:{}::/home/{name}:{shell}", owner.uid, owner.gid));
    if own_group.is_none() {
        add_line(&mut group, &format!("{name}:x:{}:", owner.gid));
        write(writer, "/etc/group", &group, 0o644)?;
    }
    write(writer, "/etc/passwd", &passwd, 0o644)?;
    add_shadow(view, writer, name)?;
    writer.ensure_directory(Path::new("/home"), FileOwner::ROOT, 0o755)?;
    writer.ensure_directory(&Path::new("/home").join(name), owner, 0o755).map(drop)
}

/// An id that is free both as a user's and as a group's.
fn free_id(passwd: &str, group: &str) -> Option<u32> {
    let users = accounts(passwd).flat_map(|account| [account.uid, account.gid]);
    let taken: std::collections::HashSet<u32> = users.chain(groups(group).map(|(_, gid)| gid)).collect();
    (MIN_ID..=MAX_ID).find(|id| !taken.contains(id))
}

fn groups(group: &str) -> impl Iterator<Item = (&str, u32)> {
    group.lines().filter_map(|line| {
        let mut fields = line.split(':');
        Some((fields.next()?, fields.nth(1)?.parse().ok()?))
    })
}

fn allow_sudo(view: &View, writer: &mut Writer<'_>, name: &str) -> io::Result<()> {
    let mut group = view.read_small("/etc/group");
    let members = group.lines().find_map(|line| line.strip_prefix("sudo:")).map(|line| line.rsplit(':').next());
    match members.flatten() {
        Some(members) if members.split(',').any(|member| member == name) => {}
        Some(_) => write(writer, "/etc/group", &add_to_sudo(&group, name), 0o644)?,
        None => {
            add_line(&mut group, &format!("sudo:x:27:{name}"));
            write(writer, "/etc/group", &group, 0o644)?;
        }
    }
    let rule = format!("{name} ALL=(ALL:ALL) NOPASSWD:ALL");
    let mut sudoers = view.read_small(SUDOERS);
    if sudoers.lines().any(|line| line == rule) {
        return Ok(());
    }
    add_line(&mut sudoers, &rule);
    write(writer, SUDOERS, &sudoers, 0o440)
}

#[cfg(test)]
mod tests {
    use std::fs::{create_dir_all, metadata, read_to_string};
    use std::os::unix::fs::MetadataExt;

    use super::*;

    fn tree() -> (tempfile::TempDir, View) {
        let root = tempfile::tempdir().unwrap();
        create_dir_all(root.path().join("etc")).unwrap();
        let files = [
            ("passwd", "root:x:0:0::/root:/bin/sh\nuser:x:1000:1000::/home/user:/bin/sh\n"),
            ("group", "root:x:0:\nsudo:x:27:user\nuser:x:1000:\ntaken:x:1001:\nweb:x:1500:\n"),
            ("shadow", "root:*:1::::::\n"),
        ];
        for (name, text) in files {
            std::fs::write(root.path().join("etc").join(name), text).unwrap();
        }
        let view = View::of_directory(root.path()).unwrap();
        (root, view)
    }

    #[test]
    fn names_that_would_break_the_files_are_refused() {
        let (root, view) = tree();
        let long = "a".repeat(33);
        for name in ["", "a:b", "a\nroot2:x:0:0::/:/bin/sh", "../x", "a/b", "-rf", "1234", "a b", &long] {
            let refused = ensure_user(&view, name, true).unwrap_err();
            assert_eq!(refused.message, format!("{name:?} is not a user name"));
        }
        let passwd = read_to_string(root.path().join("etc/passwd")).unwrap();
        assert_eq!(passwd.lines().count(), 2, "{passwd}");
    }

    #[test]
    fn a_missing_user_is_added_once_with_a_home() {
        let (root, view) = tree();
        let read = |path: &str| read_to_string(root.path().join(path)).unwrap();
        for name in ["app", "web", "app"] {
            ensure_user(&view, name, false).unwrap();
        }
        let added = "app:x:1002:1002::/home/app:/bin/sh\nweb:x:1003:1500::/home/web:/bin/sh\n";
        assert!(read("etc/passwd").ends_with(&format!("/home/user:/bin/sh\n{added}")), "{}", read("etc/passwd"));
        assert!(read("etc/group").ends_with("web:x:1500:\napp:x:1002:\n"), "{}", read("etc/group"));
        assert_eq!(read("etc/shadow").matches("app:*:").count(), 1);
        let home = metadata(root.path().join("home/app")).unwrap();
        assert_eq!((home.uid(), home.gid()), (1002, 1002));
        assert_eq!(metadata(root.path().join("home")).unwrap().uid(), 0);
        assert!(!root.path().join("etc/sudoers.d").exists());
    }

    #[test]
    fn sudo_is_given_once_also_to_a_user_who_was_there() {
        let (root, view) = tree();
        let read = |path: &str| read_to_string(root.path().join(path)).unwrap();
        for name in ["app", "user", "app"] {
            ensure_user(&view, name, true).unwrap();
        }
        assert!(read("etc/group").contains("sudo:x:27:user,app\n"), "{}", read("etc/group"));
        let rules = "app ALL=(ALL:ALL) NOPASSWD:ALL\nuser ALL=(ALL:ALL) NOPASSWD:ALL\n";
        assert_eq!(read("etc/sudoers.d/isopod"), rules);
    }

    #[test]
    fn an_image_without_the_group_sudo_gets_it() {
        let (root, view) = tree();
        std::fs::write(root.path().join("etc/group"), "root:x:0:").unwrap();
        ensure_user(&view, "app", true).unwrap();
        let group = read_to_string(root.path().join("etc/group")).unwrap();
        assert_eq!(group, "root:x:0:\napp:x:1001:\nsudo:x:27:app\n");
    }
}
