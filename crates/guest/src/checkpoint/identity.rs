//! `POST /restore/identity?name=NAME`: what tells a copy from its source, in files. The host has set the kernel's host name
//! already.

use std::fs;
use std::io;

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
    // Images without these files, and full disks, are no reason to refuse a copy.
    let _ = blocking::run(move || write(&name)).await;
    Ok(status_reply(StatusCode::NO_CONTENT))
}

fn write(name: &str) -> io::Result<()> {
    fs::write(HOST_NAME, format!("{name}\n"))?;
    let hosts = fs::read_to_string(HOSTS).unwrap_or_default();
    if let Some(changed) = with_name(&hosts, name) {
        fs::write(HOSTS, changed)?;
    }
    // An empty one means that there is none yet.
    if fs::metadata(MACHINE_ID).is_ok_and(|found| found.len() > 0) {
        fs::write(MACHINE_ID, format!("{}\n", random_id()?))?;
    }
    Ok(())
}

/// The table of hosts with a name of this sandbox, or `None` if it has it.
fn with_name(hosts: &str, name: &str) -> Option<String> {
    let lists =
        |line: &str| line.split('#').next().unwrap_or_default().split_whitespace().skip(1).any(|word| word == name);
    if hosts.lines().any(lists) {
        return None;
    }
    let separator = if hosts.is_empty() || hosts.ends_with('\n') { "" } else { "\n" };
    Some(format!("{hosts}{separator}127.0.0.1\t{name}\n"))
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
        let hosts = with_name("127.0.0.1\tlocalhost isopod", "i1").unwrap();
        assert_eq!(hosts, "127.0.0.1\tlocalhost isopod\n127.0.0.1\ti1\n");
        assert_eq!(with_name(&hosts, "i1"), None);
        assert_eq!(with_name("", "i1").unwrap(), "127.0.0.1\ti1\n");
        assert!(with_name("127.0.0.1 i12 # i1\n", "i1").is_some());
    }

    #[test]
    fn ids_of_machines_differ() {
        let (one, two) = (random_id().unwrap(), random_id().unwrap());
        assert_eq!(one.len(), 32);
        assert_ne!(one, two);
    }
}
