//! Checks the rights of restored processes, before they run.
//!
//! The images decide which ids, capabilities and filters a restored process gets. They were read from processes that are not
//! trusted, by a program that traced them. So what came out of it is compared with what the sandbox allows.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::Path;

use isopod_wire::KernelFeatures;
use serde::{Deserialize, Serialize};

use super::admission::check_place;
use crate::capabilities::allowed_mask;
use crate::seccomp::{bytes_of, sandbox_filter_bytes};
use crate::sys::ptrace::filters_of;

/// How many ids a sandbox has.
const RANGE: u32 = 65_536;

/// What the processes of a sandbox may have.
#[derive(Clone, Copy, Debug)]
pub struct RestoredRights {
    /// The sandbox's first process, which has the same namespaces and cgroups.
    pub init: u32,
    /// The first of the sandbox's host ids.
    pub first_id: u32,
    pub features: KernelFeatures,
}

impl RestoredRights {
    /// Checks a stopped process and all its threads. The error says what it has too much.
    pub fn check(&self, pid: u32) -> Result<(), String> {
        check_place(pid, self.init)?;
        let threads = fs::read_dir(format!("/proc/{pid}/task")).map_err(|error| error.to_string())?;
        for thread in threads {
            let path = thread.map_err(|error| error.to_string())?.path().join("status");
            let status = fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
            self.check_status(&status)?;
        }
        Ok(())
    }

    fn check_status(&self, status: &str) -> Result<(), String> {
        let field = |name: &str| {
            let value = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            value.map(str::trim).ok_or_else(|| format!("the kernel does not report its {name}"))
        };
        let ids = self.first_id..self.first_id.saturating_add(RANGE);
        for name in ["Uid", "Gid", "Groups"] {
            let value = field(name)?;
            let is_own = |id: &str| id.parse().is_ok_and(|id: u32| ids.contains(&id));
            if !value.split_whitespace().all(is_own) {
                return Err(format!("{name} is {value:?}, which is not all in the sandbox's range"));
            }
        }
        let allowed = allowed_mask(self.features);
        for name in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
            let value = field(name)?;
            if u64::from_str_radix(value, 16).map_or(true, |found| found & !allowed != 0) {
                return Err(format!("{name} is {value}, and the sandbox allows {allowed:016x}"));
            }
        }
        let filters = field("Seccomp_filters")?;
        if field("Seccomp")? != "2" || filters.parse().map_or(true, |count: u32| count == 0) {
            return Err("it has no system call filter".to_owned());
        }
        Ok(())
    }
}

/// The system call filters of a sandbox, in hexadecimal. Each of its processes has one of them: that of its first process, or
/// the one that a zygote's child loads when it enters. They are of different versions if the server was upgraded in between.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SandboxFilters(BTreeSet<String>);

impl SandboxFilters {
    /// Those of a sandbox whose first process has no filter but the launcher's.
    pub fn of(init: u32) -> io::Result<Self> {
        let own = on_a_thread(|| filters_of(init))?;
        let own =
            own.first().ok_or_else(|| io::Error::other("the sandbox's first process has no system call filter"))?;
        Ok(Self([bytes_of(own), sandbox_filter_bytes()].into_iter().map(hex::encode).collect()))
    }

    /// Checks all threads of stopped processes, and those that are started meanwhile: a thread keeps its filters, and what it
    /// starts gets them too. The error says which process has not the filter of the sandbox.
    pub fn check(&self, pids: impl Fn() -> Vec<u32> + Send) -> Result<(), String> {
        on_a_thread(move || {
            let mut checked = BTreeSet::new();
            loop {
                let found: BTreeSet<u32> = pids().into_iter().flat_map(threads_of).collect();
                let mut new = found.difference(&checked).copied().collect::<Vec<_>>().into_iter().peekable();
                if new.peek().is_none() {
                    return Ok(());
                }
                new.try_for_each(|thread| self.check_thread(thread))?;
                checked.extend(found);
            }
        })
    }

    fn check_thread(&self, thread: u32) -> Result<(), String> {
        let filters = match filters_of(thread) {
            // It has ended.
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => return Ok(()),
            filters => filters.map_err(|error| format!("its system call filters cannot be read: {error}"))?,
        };
        match filters.iter().any(|filter| self.0.contains(&hex::encode(bytes_of(filter)))) {
            true => Ok(()),
            false => Err("its system call filter is not the sandbox's".to_owned()),
        }
    }
}

fn threads_of(pid: u32) -> Vec<u32> {
    let Ok(threads) = fs::read_dir(Path::new("/proc").join(pid.to_string()).join("task")) else { return Vec::new() };
    threads.filter_map(|thread| thread.ok()?.file_name().to_str()?.parse().ok()).collect()
}

/// What a thread traces is let go at its end, whatever happens.
fn on_a_thread<T: Send>(task: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| match scope.spawn(task).join() {
        Ok(done) => done,
        Err(panic) => std::panic::resume_unwind(panic),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const RIGHTS: RestoredRights =
        RestoredRights { init: 1, first_id: 100_000, features: KernelFeatures { userns: false, fuse: false } };

    const GOOD: &str = "Name:\tx\nUid:\t101000\t101000\t101000\t101000\nGid:\t100000\t100000\t100000\t100000\n\
        Groups:\t100027 101000 \nCapInh:\t0000000000000000\nCapPrm:\t00000000a80405fb\nCapEff:\t0000000000000000\n\
        CapBnd:\t00000000a80405fb\nCapAmb:\t0000000000000000\nSeccomp:\t2\nSeccomp_filters:\t1\n";

    #[test]
    fn each_right_too_much_is_enough_to_refuse_a_process() {
        assert_eq!(RIGHTS.check_status(GOOD), Ok(()));
        for (good, bad) in [
            ("Uid:\t101000", "Uid:\t0"),
            ("Uid:\t101000\t101000\t101000\t101000", "Uid:\t101000\t101000\t101000\t165536"),
            ("Gid:\t100000\t100000", "Gid:\t100000\t99999"),
            ("Groups:\t100027", "Groups:\t27"),
            ("CapInh:\t0000000000000000", "CapInh:\t0000000000200000"),
            ("CapPrm:\t00000000a80405fb", "CapPrm:\t00000000a82405fb"),
            ("CapEff:\t0000000000000000", "CapEff:\t0000000000001000"),
            ("CapBnd:\t00000000a80405fb", "CapBnd:\t000001ffffffffff"),
            ("CapAmb:\t0000000000000000", "CapAmb:\tzz"),
            ("Seccomp:\t2", "Seccomp:\t0"),
            ("Seccomp_filters:\t1", "Seccomp_filters:\t0"),
        ] {
            assert!(GOOD.contains(good), "{good}");
            assert!(RIGHTS.check_status(&GOOD.replace(good, bad)).is_err(), "{bad}");
        }
    }
}
