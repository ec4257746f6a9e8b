//! The sandbox's users and groups, read from its `/etc/passwd` and `/etc/group` at every lookup.
//!
//! The files belong to the sandbox and may contain anything. Malformed lines are skipped, a file that is not regular counts
//! as empty (a FIFO would block), and only the first part of a huge file is read.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use rustix::fs::{Mode, OFlags};

const PASSWD: &str = "/etc/passwd";
const GROUP: &str = "/etc/group";
/// How much of a file is read: no sandbox needs more users, and the guest must stay small.
const MAX_FILE: u64 = 1 << 20;

/// A line of `/etc/passwd`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct User {
    pub(crate) name: String,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) home: String,
    pub(crate) shell: String,
}

impl User {
    pub(crate) fn by_name(name: &str) -> Option<Self> {
        parse_passwd(&read_small(Path::new(PASSWD))).find(|user| user.name == name)
    }

    pub(crate) fn by_uid(uid: u32) -> Option<Self> {
        parse_passwd(&read_small(Path::new(PASSWD))).find(|user| user.uid == uid)
    }

    /// The primary group and every group that lists the user.
    pub(crate) fn groups(&self) -> Vec<u32> {
        let mut groups = vec![self.gid];
        for group in parse_group(&read_small(Path::new(GROUP))) {
            if group.members.contains(&self.name) && !groups.contains(&group.gid) {
                groups.push(group.gid);
            }
        }
        groups
    }
}

/// A line of `/etc/group`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Group {
    pub(crate) name: String,
    pub(crate) gid: u32,
    pub(crate) members: Vec<String>,
}

impl Group {
    pub(crate) fn by_name(name: &str) -> Option<Self> {
        parse_group(&read_small(Path::new(GROUP))).find(|group| group.name == name)
    }
}

/// Maps ids to names; read once for a whole listing.
#[derive(Debug)]
pub(crate) struct Names {
    users: Vec<User>,
    groups: Vec<Group>,
}

impl Names {
    pub(crate) fn read() -> Self {
        Self {
            users: parse_passwd(&read_small(Path::new(PASSWD))).collect(),
            groups: parse_group(&read_small(Path::new(GROUP))).collect(),
        }
    }

    /// The user's name, or the number if it has none.
    pub(crate) fn user(&self, uid: u32) -> String {
        let found = self.users.iter().find(|user| user.uid == uid);
        found.map_or_else(|| uid.to_string(), |user| user.name.clone())
    }

    /// The group's name, or the number if it has none.
    pub(crate) fn group(&self, gid: u32) -> String {
        let found = self.groups.iter().find(|group| group.gid == gid);
        found.map_or_else(|| gid.to_string(), |group| group.name.clone())
    }
}

fn parse_passwd(text: &str) -> impl Iterator<Item = User> {
    text.lines().filter_map(|line| {
        let fields: Vec<&str> = line.split(':').collect();
        let [name, _, uid, gid, _, home, shell] = fields[..] else { return None };
        if name.is_empty() {
            return None;
        }
        let home = if home.starts_with('/') { home } else { "/" };
        Some(User {
            name: name.to_owned(),
            uid: uid.parse().ok()?,
            gid: gid.parse().ok()?,
            home: home.to_owned(),
            shell: if shell.is_empty() { "/bin/sh".to_owned() } else { shell.to_owned() },
        })
    })
}

fn parse_group(text: &str) -> impl Iterator<Item = Group> {
    text.lines().filter_map(|line| {
        let fields: Vec<&str> = line.split(':').collect();
        let [name, _, gid, members] = fields[..] else { return None };
        let members = members.split(',').filter(|m| !m.is_empty()).map(str::to_owned).collect();
        Some(Group { name: name.to_owned(), gid: gid.parse().ok()?, members })
    })
}

/// Fuzzed: account files, in which a sandbox's root can write anything.
#[cfg(feature = "fuzzing")]
pub fn fuzz_accounts(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    assert!(parse_passwd(&text).all(|user| !user.name.is_empty() && user.home.starts_with('/')));
    assert!(parse_group(&text).all(|group| group.members.iter().all(|member| !member.is_empty())));
}

/// The text of a small regular file; empty if there is no such file.
pub(crate) fn read_small(path: &Path) -> String {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let Ok(fd) = rustix::fs::open(path, flags, Mode::empty()) else { return String::new() };
    let file = File::from(fd);
    // Files of procfs claim to be regular and empty, so the length says nothing.
    if !file.metadata().is_ok_and(|meta| meta.is_file()) {
        return String::new();
    }
    let mut bytes = Vec::new();
    match file.take(MAX_FILE).read_to_end(&mut bytes) {
        Ok(_) => String::from_utf8_lossy(&bytes).into_owned(),
        Err(_) => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn bad_lines_are_skipped() {
        let text =
            "# comment\nroot:x:0:0:root:/root:/bin/bash\nbroken:x:a:0::/:\n:x:1:1::/:/x\nuser:x:1000:1000::home:\n";
        let users: Vec<User> = parse_passwd(text).collect();
        assert_eq!(users.len(), 2);
        assert_eq!((users[1].home.as_str(), users[1].shell.as_str()), ("/", "/bin/sh"));
    }

    #[test]
    fn group_members_are_a_list() {
        let groups: Vec<Group> = parse_group("sudo:x:27:user,other\nempty:x:5:\n").collect();
        assert_eq!(groups[0].members, ["user", "other"]);
        assert!(groups[1].members.is_empty());
    }

    #[test]
    fn a_fifo_in_place_of_the_file_does_not_block() {
        let dir = tempfile::tempdir().unwrap();
        let fifo = dir.path().join("passwd");
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, Mode::RUSR, 0).unwrap();
        assert_eq!(read_small(&fifo), "");
    }

    proptest! {
        #[test]
        fn any_text_parses(text in ".{0,400}") {
            let _ = parse_passwd(&text).count() + parse_group(&text).count();
        }
    }
}
