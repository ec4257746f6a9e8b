//! Which process is meant: a pid alone may name another one tomorrow.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;

use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde::{Deserialize, Serialize};

/// A process that cannot be confused with a later one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ProcessIdentity {
    /// The boot in which it ran.
    pub(crate) boot_id: String,
    pub(crate) pid: u32,
    /// Clock ticks after boot.
    pub(crate) start_time: u64,
}

impl ProcessIdentity {
    /// Of a process that runs now.
    pub(crate) fn of(pid: u32) -> io::Result<Self> {
        Ok(Self { boot_id: boot_id()?, pid, start_time: start_time(pid)? })
    }

    /// A handle to it, if it still runs.
    pub(crate) fn open(&self) -> Option<OwnedFd> {
        if boot_id().ok()? != self.boot_id {
            return None;
        }
        let pidfd = pidfd_open(Pid::from_raw(self.pid.cast_signed())?, PidfdFlags::NONBLOCK).ok()?;
        // Looked at after the handle is open, so that the pid cannot change hands in between.
        (start_time(self.pid).ok()? == self.start_time).then_some(pidfd)
    }
}

/// Changes with every start of the host.
pub(crate) fn boot_id() -> io::Result<String> {
    Ok(fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned())
}

fn start_time(pid: u32) -> io::Result<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    parse_start_time(&stat).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// Field 22. The name in field 2 may hold anything, so fields count from its closing bracket. A zombie is gone.
fn parse_start_time(stat: &str) -> Option<u64> {
    let mut fields = stat[stat.rfind(')')? + 1..].split_whitespace();
    let state = fields.next()?;
    if matches!(state, "Z" | "X") {
        return None;
    }
    fields.nth(18)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hostile_process_name_does_not_confuse_the_fields() {
        let stat = "7 (a) R) S 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 4242 1000 10";
        assert_eq!(parse_start_time(stat), Some(4242));
        assert_eq!(parse_start_time("7 (x) Z 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 4242 1000 10"), None);
        assert_eq!(parse_start_time(""), None);
    }

    #[test]
    fn this_process_is_found_and_an_earlier_boot_is_not() {
        let me = ProcessIdentity::of(std::process::id()).unwrap();
        assert!(me.open().is_some());
        assert!(ProcessIdentity { boot_id: "another".to_owned(), ..me.clone() }.open().is_none());
        assert!(ProcessIdentity { start_time: me.start_time + 1, ..me }.open().is_none());
    }
}
