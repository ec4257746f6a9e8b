//! The clock that tells a sandbox how long it has been running.
//!
//! A time namespace moves the boot clock, by which the kernel tells `/proc/uptime` and when each process was started. Only
//! that clock is moved: the monotonic one stays the host's, so that timers of a process mean the same in every sandbox of
//! this boot.
//!
//! The kernel takes offsets only before a namespace has its first process, so nobody inside can change them.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::Path;

use rustix::time::{ClockId, Timespec, clock_gettime};

use super::step::{Failure, Step};
use crate::sys::ns::{Namespaces, unshare};

const OFFSETS: &str = "/proc/self/timens_offsets";
const MAX_NAMESPACES: &str = "/proc/sys/user/max_time_namespaces";
const NANOS_PER_SECOND: i64 = 1_000_000_000;

/// Whether this kernel can give a sandbox a boot clock of its own.
pub fn has_time_namespaces() -> bool {
    Path::new(OFFSETS).exists() && fs::read_to_string(MAX_NAMESPACES).is_ok_and(|most| most.trim() != "0")
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
    use super::*;

    #[test]
    fn an_offset_takes_the_clock_to_zero_and_not_below() {
        assert_eq!(offset_line(Timespec { tv_sec: 7, tv_nsec: 0 }), "boottime -7 0\n");
        assert_eq!(offset_line(Timespec { tv_sec: 7, tv_nsec: 1 }), "boottime -8 999999999\n");
    }
}
