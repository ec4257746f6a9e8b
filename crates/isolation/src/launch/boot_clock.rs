//! The clock that tells a sandbox how long it has been running.
//!
//! A time namespace moves the boot clock, by which the kernel tells `/proc/uptime` and when each process was started. Only
//! that clock is moved: the monotonic one stays the host's, so that timers of a process mean the same in every sandbox of
//! this boot.
//!
//! The kernel takes offsets only before a namespace has its first process, so nobody inside can change them.

use std::fs::OpenOptions;
use std::io::Write;

use rustix::time::{ClockId, Timespec, clock_gettime};

use super::step::{Failure, Step};
use crate::sys::ns::{Namespaces, unshare};

const OFFSETS: &str = "/proc/self/timens_offsets";
const NANOS_PER_SECOND: i64 = 1_000_000_000;

/// Whether this kernel gives a sandbox a boot clock of its own. It is tried, because a limit or a filter can refuse what the
/// kernel has. The thread's own clock stays the host's, and the thread ends.
pub fn has_time_namespaces() -> bool {
    let trying = std::thread::spawn(|| unshare(Namespaces::TIME).is_ok());
    trying.join().unwrap_or(false)
}

/// Makes the boot clock of this process's children start now. Returns false if the kernel has no such clocks, or gives none
/// out: a sandbox works without.
///
/// The caller is in the sandbox's user namespace already, which will own the clock.
pub(super) fn start_boot_clock() -> Result<bool, Failure> {
    if unshare(Namespaces::TIME).is_err() {
        return Ok(false);
    }
    let mut offsets = OpenOptions::new().write(true).open(OFFSETS).step("open the offsets of the clocks")?;
    let line = offset_line(clock_gettime(ClockId::Boottime));
    offsets.write_all(line.as_bytes()).step("set the offset of the boot clock")?;
    Ok(true)
}

/// What is added to the host's clock so that it is zero now. The kernel wants nanoseconds that are not negative.
fn offset_line(now: Timespec) -> String {
    let (seconds, nanos) = match now.tv_nsec {
        0 => (-now.tv_sec, 0),
        nanos => (-now.tv_sec - 1, NANOS_PER_SECOND - nanos),
    };
    format!("boottime {seconds} {nanos}\n")
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::fd::AsFd;
    use std::path::PathBuf;

    use rustix::process::{Signal, WaitId, WaitIdOptions, pidfd_send_signal, set_parent_process_death_signal, waitid};

    use super::*;
    use crate::alone::alone;
    use crate::launch::enter::namespaces_of;
    use crate::sys::process::{Fork, exit_now, fork, fork_into};

    const MAX_NAMESPACES: &str = "/proc/sys/user/max_time_namespaces";

    /// The boot clock of this process, and its namespace.
    fn clock() -> (i64, PathBuf) {
        (clock_gettime(ClockId::Boottime).tv_sec, fs::read_link("/proc/self/ns/time").expect("a clock"))
    }

    /// Runs the check in a process of its own, and expects it to hold.
    fn holds_in(child: Fork, check: impl FnOnce() -> bool) {
        match child {
            Fork::Child => exit_now(i32::from(!check())),
            Fork::Parent { pidfd, .. } => {
                let ended = waitid(WaitId::PidFd(pidfd.as_fd()), WaitIdOptions::EXITED).expect("a child");
                assert_eq!(ended.and_then(|ended| ended.exit_status()), Some(0));
            }
        }
    }

    /// Whether an interpreter that enters a child of this process is to enter another clock.
    fn child_has_clock() -> bool {
        let Fork::Parent { pid, pidfd } = fork().expect("a fork") else {
            let _ = set_parent_process_death_signal(Some(Signal::KILL));
            loop {
                std::thread::park();
            }
        };
        let opened = namespaces_of(pid).expect("they can be opened");
        pidfd_send_signal(&pidfd, Signal::KILL).expect("it lives");
        assert!(opened.iter().any(|(name, _)| *name == "mnt"));
        opened.iter().any(|(name, _)| *name == "time")
    }

    #[test]
    fn a_sandbox_has_the_hosts_clock_if_the_kernel_gives_out_no_other() {
        alone("launch::boot_clock::tests::a_sandbox_has_the_hosts_clock_if_the_kernel_gives_out_no_other", || {
            let (host_time, host) = clock();
            holds_in(fork_into(Namespaces::USER).expect("a fork"), || {
                // The limit of this user namespace, not of the host.
                fs::write(MAX_NAMESPACES, "0").expect("root of a namespace sets its limits");
                assert_eq!(start_boot_clock().ok(), Some(false));
                assert!(!child_has_clock());
                holds_in(fork().expect("a fork"), || {
                    let (time, namespace) = clock();
                    time >= host_time && namespace == host
                });
                true
            });
        });
    }

    #[test]
    fn a_sandbox_has_a_clock_of_its_own_if_the_kernel_gives_it_one() {
        alone("launch::boot_clock::tests::a_sandbox_has_a_clock_of_its_own_if_the_kernel_gives_it_one", || {
            let (host_time, host) = clock();
            holds_in(fork_into(Namespaces::USER).expect("a fork"), || {
                assert_eq!(start_boot_clock().ok(), Some(true));
                assert!(child_has_clock());
                holds_in(fork().expect("a fork"), || {
                    let (time, namespace) = clock();
                    time < host_time && namespace != host
                });
                true
            });
            assert!(has_time_namespaces());
            assert_eq!(clock().1, host, "trying it changes nothing");
        });
    }

    #[test]
    fn an_offset_takes_the_clock_to_zero_and_not_below() {
        assert_eq!(offset_line(Timespec { tv_sec: 7, tv_nsec: 0 }), "boottime -7 0\n");
        assert_eq!(offset_line(Timespec { tv_sec: 7, tv_nsec: 1 }), "boottime -8 999999999\n");
    }
}
