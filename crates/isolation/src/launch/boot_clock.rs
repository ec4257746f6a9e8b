//! The clocks of a sandbox.
//!
//! A time namespace moves the boot clock, by which the kernel tells `/proc/uptime` and when each process was started. It
//! starts with the sandbox. The monotonic clock stays the host's, so that timers of a process mean the same in every sandbox
//! of this boot. Only a sandbox whose processes were saved on another boot has one that goes on from there.
//!
//! The kernel takes offsets only before a namespace has its first process, so nobody inside can change them.

use std::fs::OpenOptions;
use std::io::Write;

use rustix::time::{ClockId, Timespec, clock_gettime};
use serde::{Deserialize, Serialize};

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

/// How far the clocks of a restored sandbox are from the host's, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClockOffsets {
    /// `CLOCK_MONOTONIC`.
    pub monotonic: i64,
    /// `CLOCK_BOOTTIME`.
    pub boot: i64,
}

impl ClockOffsets {
    /// Those of a new sandbox, whose boot clock starts now.
    fn of_new() -> Self {
        let Timespec { tv_sec, tv_nsec } = clock_gettime(ClockId::Boottime);
        Self { monotonic: 0, boot: -(tv_sec * NANOS_PER_SECOND + tv_nsec) }
    }

    /// As the kernel takes them, with nanoseconds that are not negative.
    fn lines(self) -> String {
        let line = |clock: &str, offset: i64| {
            let (seconds, nanos) = (offset.div_euclid(NANOS_PER_SECOND), offset.rem_euclid(NANOS_PER_SECOND));
            format!("{clock} {seconds} {nanos}\n")
        };
        line("monotonic", self.monotonic) + &line("boottime", self.boot)
    }
}

/// Sets the clocks of this process's children. Returns false if the kernel has no such clocks, or gives none out: a new
/// sandbox works without.
///
/// The caller is in the sandbox's user namespace already, which will own the clocks.
pub(super) fn set_clocks(restored: Option<ClockOffsets>) -> Result<bool, Failure> {
    if let Err(error) = unshare(Namespaces::TIME) {
        // With the host's clock, what waits would wait for as long as another boot had lasted.
        return match restored {
            Some(ClockOffsets { monotonic: 1.. | ..=-1, .. }) => Err(error).step("continue its monotonic clock"),
            _ => Ok(false),
        };
    }
    let mut offsets = OpenOptions::new().write(true).open(OFFSETS).step("open the offsets of the clocks")?;
    let lines = restored.unwrap_or_else(ClockOffsets::of_new).lines();
    offsets.write_all(lines.as_bytes()).step("set the offsets of the clocks")?;
    Ok(true)
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
                assert_eq!(set_clocks(None).ok(), Some(false));
                let on_this_boot = ClockOffsets { monotonic: 0, boot: 5 };
                assert_eq!(set_clocks(Some(on_this_boot)).ok(), Some(false));
                assert!(
                    set_clocks(Some(ClockOffsets { monotonic: 1, ..on_this_boot })).is_err(),
                    "it would wait too long"
                );
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
                assert_eq!(set_clocks(None).ok(), Some(true));
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
    fn a_restored_sandbox_has_the_clocks_that_it_had() {
        alone("launch::boot_clock::tests::a_restored_sandbox_has_the_clocks_that_it_had", || {
            let seconds = |clock| clock_gettime(clock).tv_sec;
            let (monotonic, boot) = (seconds(ClockId::Monotonic), seconds(ClockId::Boottime));
            holds_in(fork_into(Namespaces::USER).expect("a fork"), || {
                let later = ClockOffsets { monotonic: 1_000_000 * NANOS_PER_SECOND, boot: -boot * NANOS_PER_SECOND };
                assert_eq!(set_clocks(Some(later)).ok(), Some(true));
                holds_in(fork().expect("a fork"), || {
                    let moved = seconds(ClockId::Monotonic) - monotonic;
                    (1_000_000..1_000_100).contains(&moved) && seconds(ClockId::Boottime) < 100
                });
                true
            });
        });
    }

    #[test]
    fn offsets_have_nanoseconds_that_are_not_negative() {
        let lines = |monotonic, boot| ClockOffsets { monotonic, boot }.lines();
        assert_eq!(lines(0, -7_000_000_000), "monotonic 0 0\nboottime -7 0\n");
        assert_eq!(lines(1_000_000_002, -7_000_000_001), "monotonic 1 2\nboottime -8 999999999\n");
    }
}
