//! The person whose browsers are meant: the one who called sudo, or else root.

use std::env;
use std::fs;
use std::path::PathBuf;

use anyhow::Context;

use crate::failure::Hint;

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Person {
    pub(super) home: PathBuf,
    /// User and group, if they are others than ours.
    pub(super) ids: Option<(u32, u32)>,
}

impl Person {
    /// # Errors
    /// If there is no such user, or no home.
    pub(super) fn who_asks() -> anyhow::Result<Self> {
        match env::var("SUDO_USER") {
            Ok(name) if name != "root" && !name.is_empty() => {
                let users = fs::read_to_string("/etc/passwd").context("could not read /etc/passwd")?;
                let hint = "run the command as root, with HOME set to the home of the browser's user";
                find(&users, &name).ok_or_else(|| Hint::new(format!("there is no user {name} in /etc/passwd"), hint))
            }
            _ => {
                let home = env::var_os("HOME").map_or_else(|| PathBuf::from("/root"), PathBuf::from);
                Ok(Self { home, ids: None })
            }
        }
    }
}

fn find(users: &str, name: &str) -> Option<Person> {
    users.lines().find_map(|line| {
        let fields: Vec<&str> = line.split(':').collect();
        let [user, _, uid, gid, _, home, ..] = fields[..] else { return None };
        let ids = (uid.parse().ok()?, gid.parse().ok()?);
        (user == name).then(|| Person { home: PathBuf::from(home), ids: Some(ids) })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_is_found_by_the_whole_name() {
        let users = "root:x:0:0:root:/root:/bin/bash\nann:x:1000:1001:Ann:/home/ann:/bin/bash\nbroken\n";
        let ann = Person { home: PathBuf::from("/home/ann"), ids: Some((1000, 1001)) };
        assert_eq!(find(users, "ann"), Some(ann));
        assert_eq!(find(users, "an"), None);
    }
}
