//! `POST /restore/identity?name=NAME`: what tells a copy from its source, in files. The host has set the kernel's host name
//! already.

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};

use http::StatusCode;

use crate::blocking;
use crate::http::{HttpError, Reply, status_reply};

const HOST_NAME: &str = "/etc/hostname";
const HOSTS: &str = "/etc/hosts";
const MACHINE_ID: &str = "/etc/machine-id";
/// The kernel's own limit.
const MAX_NAME: usize = 64;

pub(super) async fn identity(name: Option<&str>) -> Result<Reply, HttpError> {
    let is_valid = |name: &&str| {
        !name.is_empty()
            && name.len() <= MAX_NAME
            && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
    };
    let name = name.filter(is_valid).ok_or_else(|| HttpError::new(StatusCode::BAD_REQUEST, "invalid host name"))?;
    let name = name.to_owned();
    // Images without these files, other things in their places, and full disks are no reason to refuse a copy.
    let _ = blocking::run(move || {
        let _ = replace(HOST_NAME, &format!("{name}\n"));
        let _ = add_to_hosts(&name);
        let _ = random_id().and_then(|id| replace(MACHINE_ID, &format!("{id}\n")));
    })
    .await;
    Ok(status_reply(StatusCode::NO_CONTENT))
}

/// Replaces a file as a whole. One that is empty or missing stays so: it means that there is no name or id yet.
fn replace(path: &str, text: &str) -> io::Result<()> {
    let found = fs::symlink_metadata(path)?;
    if !found.is_file() || found.len() == 0 {
        return Ok(());
    }
    let new = format!("{path}.isopod");
    let written = fs::write(&new, text).and_then(|()| fs::set_permissions(&new, found.permissions()));
    written.and_then(|()| fs::rename(&new, path)).inspect_err(|_| drop(fs::remove_file(&new)))
}

fn add_to_hosts(name: &str) -> io::Result<()> {
    if !fs::symlink_metadata(HOSTS)?.is_file() {
        return Ok(());
    }
    match line_for(&fs::read(HOSTS)?, name) {
        Some(line) => OpenOptions::new().append(true).open(HOSTS)?.write_all(line.as_bytes()),
        None => Ok(()),
    }
}

/// What to add to the table of hosts, or `None` if it has the name.
fn line_for(hosts: &[u8], name: &str) -> Option<String> {
    let lists = |line: &[u8]| {
        let names = line.split(|byte| *byte == b'#').next().unwrap_or_default();
        names.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty()).skip(1).any(|word| word == name.as_bytes())
    };
    if hosts.split(|byte| *byte == b'\n').any(lists) {
        return None;
    }
    let separator = if hosts.is_empty() || hosts.ends_with(b"\n") { "" } else { "\n" };
    Some(format!("{separator}127.0.0.1\t{name}\n"))
}

/// 32 hexadecimal digits.
fn random_id() -> io::Result<String> {
    let mut bytes = [0; 16];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_added_to_the_hosts_once() {
        assert_eq!(line_for(b"127.0.0.1\tlocalhost isopod", "i1").unwrap(), "\n127.0.0.1\ti1\n");
        assert_eq!(line_for(b"127.0.0.1\tlocalhost\n127.0.0.1\ti1\n", "i1"), None);
        assert_eq!(line_for(b"", "i1").unwrap(), "127.0.0.1\ti1\n");
        assert!(line_for(b"127.0.0.1 i12 \xff # i1\n", "i1").is_some());
    }

    #[test]
    fn a_file_is_replaced_as_a_whole_and_nothing_else_is() {
        let place = tempfile::tempdir().unwrap();
        let path = |name: &str| place.path().join(name).to_str().unwrap().to_owned();
        fs::write(path("full"), "before\n").unwrap();
        fs::write(path("empty"), "").unwrap();
        fs::create_dir(path("directory")).unwrap();
        std::os::unix::fs::symlink(path("full"), path("link")).unwrap();
        for name in ["full", "empty", "directory", "link"] {
            replace(&path(name), "after\n").unwrap();
        }
        assert!(replace(&path("missing"), "after\n").is_err());
        assert_eq!(fs::read(path("full")).unwrap(), b"after\n");
        assert_eq!(fs::read(path("empty")).unwrap(), b"");
        assert!(fs::symlink_metadata(path("link")).unwrap().is_symlink());
        assert_eq!(fs::read_dir(place.path()).unwrap().count(), 4, "nothing is left beside them");
    }

    #[test]
    fn ids_of_machines_differ() {
        let (one, two) = (random_id().unwrap(), random_id().unwrap());
        assert_eq!(one.len(), 32);
        assert_ne!(one, two);
    }
}
