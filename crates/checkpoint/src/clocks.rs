//! The clocks of saved processes.
//!
//! Programs wait until a moment of the monotonic clock, which starts again when the host does. After a reboot, a restored
//! sandbox has a monotonic clock that goes on where it was saved. Otherwise a program that sleeps for three seconds would
//! sleep for as long as the host had been running before.
//!
//! On the same boot, the monotonic clock goes on with the host's, as it does while a sandbox is frozen. The boot clock stands
//! still while processes are saved. Neither ever goes backwards.

use std::fs;
use std::io;

use isopod_isolation::launch::ClockOffsets;
use rustix::time::{ClockId, Timespec, clock_gettime};
use serde::{Deserialize, Serialize};

const NANOS_PER_SECOND: i64 = 1_000_000_000;

/// The clocks of a sandbox when it was saved.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedClocks {
    /// Which boot of the host it was.
    host_boot: String,
    monotonic: SavedClock,
    boot: SavedClock,
}

/// In nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct SavedClock {
    /// What the sandbox saw.
    time: i64,
    /// What it saw less what the host saw.
    offset: i64,
}

impl SavedClocks {
    /// Those of the sandbox with this first process.
    pub(crate) fn of(init: u32, host_boot: &str) -> io::Result<Self> {
        // Without time namespaces there is no such file, and clocks are the host's.
        let offsets = match fs::read_to_string(format!("/proc/{init}/timens_offsets")) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            other => other?,
        };
        let saved = |name: &str, now: i64| {
            let offset = offset_in(&offsets, name);
            SavedClock { time: now.saturating_add(offset), offset }
        };
        let HostClocks { monotonic, boot } = HostClocks::now();
        let (monotonic, boot) = (saved("monotonic", monotonic), saved("boottime", boot));
        Ok(Self { host_boot: host_boot.to_owned(), monotonic, boot })
    }

    /// The offsets with which they go on now.
    pub fn offsets(&self, host_boot: &str) -> ClockOffsets {
        self.offsets_at(host_boot, HostClocks::now())
    }

    fn offsets_at(&self, host_boot: &str, now: HostClocks) -> ClockOffsets {
        let is_same_boot = self.host_boot == host_boot;
        let monotonic =
            if is_same_boot { self.monotonic.offset } else { self.monotonic.time.saturating_sub(now.monotonic) };
        ClockOffsets { monotonic, boot: self.boot.time.saturating_sub(now.boot) }
    }
}

/// In nanoseconds.
#[derive(Clone, Copy, Debug)]
struct HostClocks {
    monotonic: i64,
    boot: i64,
}

impl HostClocks {
    fn now() -> Self {
        Self { monotonic: nanos(clock_gettime(ClockId::Monotonic)), boot: nanos(clock_gettime(ClockId::Boottime)) }
    }
}

fn nanos(time: Timespec) -> i64 {
    time.tv_sec.saturating_mul(NANOS_PER_SECOND).saturating_add(time.tv_nsec)
}

/// Each line of the file is a clock, seconds and nanoseconds.
fn offset_in(offsets: &str, clock: &str) -> i64 {
    let parsed = offsets.lines().find_map(|line| {
        let mut words = line.split_whitespace();
        let is_it = words.next() == Some(clock);
        let (seconds, rest): (i64, i64) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        is_it.then(|| seconds.saturating_mul(NANOS_PER_SECOND).saturating_add(rest))
    });
    parsed.unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_go_on_after_a_reboot_and_never_go_backwards() {
        let monotonic = SavedClock { time: 1_000, offset: 30 };
        let boot = SavedClock { time: 500, offset: -470 };
        let saved = SavedClocks { host_boot: "a".to_owned(), monotonic, boot };
        let later = HostClocks { monotonic: 2_000, boot: 2_000 };
        assert_eq!(saved.offsets_at("a", later), ClockOffsets { monotonic: 30, boot: -1_500 });
        let rebooted = HostClocks { monotonic: 7, boot: 9 };
        assert_eq!(saved.offsets_at("b", rebooted), ClockOffsets { monotonic: 993, boot: 491 });
    }

    #[test]
    fn offsets_are_those_that_the_kernel_tells() {
        let text = "monotonic           0         0\nboottime       -1235 456000000\n";
        assert_eq!((offset_in(text, "monotonic"), offset_in(text, "boottime")), (0, -1_234_544_000_000));
        assert_eq!((offset_in("", "monotonic"), offset_in("monotonic x", "monotonic")), (0, 0));
        let own = SavedClocks::of(std::process::id(), "a").unwrap();
        assert_eq!(own.monotonic.offset, 0, "tests run with the host's clock");
    }
}
