//! Identifies processes beyond their pid, which the kernel reuses.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;

use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde::{Deserialize, Serialize};

/// A process that cannot be confused with a later one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ProcessIdentity {
    pub(crate) boot_id: String,
    pub(crate) pid: u32,
    /// In clock ticks after boot.
    pub(crate) start_time: u64,
}

impl ProcessIdentity {
    /// The identity of a running process.
    pub(crate) fn of(pid: u32) -> io::Result<Self> {
        Ok(Self { boot_id: boot_id()?, pid, start_time: Stat::of(pid)?.start_time })
    }

    /// Opens a pidfd if the process is still running.
    pub(crate) fn open(&self) -> Option<OwnedFd> {
        self.open_if(|stat| !stat.is_zombie)
    }

    /// Opens a pidfd as long as anything of the process is left. A thread that waits in the kernel may outlive the
    /// others.
    pub(crate) fn open_remains(&self) -> Option<OwnedFd> {
        self.open_if(|_| true)
    }

    /// Whether it was killed or has ended, although a thread or child of it may still wait in the kernel. It no longer
    /// does anything then, but its pidfd does not show that.
    pub(crate) fn is_exiting(&self) -> bool {
        Stat::of(self.pid).is_ok_and(|stat| stat.start_time == self.start_time && stat.is_exiting)
    }

    fn open_if(&self, is_wanted: impl Fn(&Stat) -> bool) -> Option<OwnedFd> {
        if boot_id().ok()? != self.boot_id {
            return None;
        }
        let pidfd = pidfd_open(Pid::from_raw(self.pid.cast_signed())?, PidfdFlags::NONBLOCK).ok()?;
        // Read after the pidfd is open, so that the pid cannot be reused in between.
        let stat = Stat::of(self.pid).ok()?;
        (stat.start_time == self.start_time && is_wanted(&stat)).then_some(pidfd)
    }
}

/// An id that changes with every boot of the host.
pub(crate) fn boot_id() -> io::Result<String> {
    Ok(fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned())
}

/// The fields of `/proc/<pid>/stat` that matter here.
#[derive(Debug, PartialEq, Eq)]
struct Stat {
    is_zombie: bool,
    is_exiting: bool,
    start_time: u64,
}

/// The kernel's `PF_EXITING`.
const EXITING: u64 = 0x4;
/// `SIGKILL` in a set of pending signals. A process that waits in the kernel takes it only after the wait.
const KILLED: u64 = 1 << 8;

impl Stat {
    fn of(pid: u32) -> io::Result<Self> {
        let text = fs::read_to_string(format!("/proc/{pid}/stat"))?;
        Self::parse(&text).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    /// Parses fields 3, 9, 22 and 31. The name in field 2 may contain anything, so fields are counted from its closing
    /// parenthesis.
    fn parse(text: &str) -> Option<Self> {
        let mut fields = text[text.rfind(')')? + 1..].split_whitespace();
        let is_zombie = matches!(fields.next()?, "Z" | "X");
        let flags: u64 = fields.nth(5)?.parse().ok()?;
        let start_time = fields.nth(12)?.parse().ok()?;
        let pending: u64 = fields.nth(8)?.parse().ok()?;
        let is_exiting = is_zombie || flags & EXITING != 0 || pending & KILLED != 0;
        Some(Self { is_zombie, is_exiting, start_time })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hostile_process_name_does_not_confuse_the_fields() {
        let pending = |state, flags, signals| {
            let before = format!("7 (a) R) {state} 1 1 1 0 -1 {flags} 0 0 0 0 0 0 0 0 20 0 1 0 4242");
            Stat::parse(&format!("{before} 1000 10 99 1 1 0 0 0 {signals} 0 0 0"))
        };
        let stat = |state, flags| pending(state, flags, 0);
        let told = |is_zombie, is_exiting| Some(Stat { is_zombie, is_exiting, start_time: 4242 });
        assert_eq!(stat("S", 0x400100), told(false, false));
        assert_eq!(stat("S", 0x400104), told(false, true));
        assert_eq!(stat("Z", 0x40010c), told(true, true));
        assert_eq!(pending("D", 0x400100, 0x100), told(false, true), "killed while it waits in the kernel");
        assert_eq!(Stat::parse(""), None);
    }

    #[test]
    fn a_zombie_does_not_run_but_is_left_until_somebody_waits() {
        let mut child = std::process::Command::new("cat").stdin(std::process::Stdio::piped()).spawn().unwrap();
        let identity = ProcessIdentity::of(child.id()).unwrap();
        assert!(identity.open().is_some() && !identity.is_exiting());
        child.kill().unwrap();
        while identity.open().is_some() {
            std::thread::yield_now();
        }
        assert!(identity.open_remains().is_some() && identity.is_exiting());
        child.wait().unwrap();
        assert!(identity.open_remains().is_none() && !identity.is_exiting());
    }

    #[test]
    fn this_process_is_found_and_an_earlier_boot_is_not() {
        let me = ProcessIdentity::of(std::process::id()).unwrap();
        assert!(me.open().is_some());
        assert!(ProcessIdentity { boot_id: "another".to_owned(), ..me.clone() }.open().is_none());
        assert!(ProcessIdentity { start_time: me.start_time + 1, ..me }.open().is_none());
    }
}
