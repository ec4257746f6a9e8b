//! Tells whether a file is as it was when it was copied, in a way that the sandbox cannot forge.
//!
//! A program can set a file's size and mtime back, but only the kernel sets the ctime: at each change of content, name,
//! link count or attribute. Two changes within one tick of the kernel's clock have the same ctime, so a file counts as
//! settled only some time after the last one. And a file that somebody has open for writing never does: a long write, one
//! that is under way on the disk, and a shared mapping change content later than they change the ctime.

use std::time::{Duration, SystemTime};

use rustix::fs::Stat;
use rustix::time::{ClockId, clock_gettime};

/// The kernel's clock ticks at least every 10 ms.
const TICK: Duration = Duration::from_millis(100);
/// The ctime of small inodes of ext4 has only seconds. It looks like one that is at the start of a second by chance.
const TICK_OF_SECONDS: Duration = Duration::from_secs(2);

/// The time by the clock that gives ctimes, which may be behind the exact one.
pub(super) fn now() -> SystemTime {
    let now = clock_gettime(ClockId::RealtimeCoarse);
    let since_epoch =
        Duration::new(now.tv_sec.try_into().unwrap_or_default(), now.tv_nsec.try_into().unwrap_or_default());
    SystemTime::UNIX_EPOCH + since_epoch
}

/// One state of one inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Version {
    device: u64,
    inode: u64,
    seconds: i64,
    nanoseconds: i64,
}

impl Version {
    #[expect(clippy::unnecessary_cast, reason = "the types of the fields depend on the architecture")]
    pub(super) fn of(stat: &Stat) -> Self {
        Self {
            device: stat.st_dev as u64,
            inode: stat.st_ino as u64,
            seconds: stat.st_ctime as i64,
            nanoseconds: stat.st_ctime_nsec as i64,
        }
    }

    /// Whether each later change gives another version. `now` was read before the version.
    pub(super) fn is_settled(&self, now: SystemTime) -> bool {
        let tick = if self.nanoseconds == 0 { TICK_OF_SECONDS } else { TICK };
        let since_epoch = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let Some(latest) = since_epoch.checked_sub(tick) else { return false };
        let latest = (latest.as_secs() as i64, i64::from(latest.subsec_nanos()));
        (self.seconds, self.nanoseconds) < latest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn changed_at(milliseconds: u64) -> Version {
        let nanoseconds = (milliseconds % 1000 * 1_000_000) as i64;
        Version { device: 1, inode: 2, seconds: (milliseconds / 1000) as i64, nanoseconds }
    }

    fn at(milliseconds: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_millis(milliseconds)
    }

    #[test]
    fn a_file_is_settled_some_ticks_after_its_last_change() {
        let changed = changed_at(50_950);
        assert!(!changed.is_settled(at(50_950)) && !changed.is_settled(at(51_050)));
        assert!(changed.is_settled(at(51_051)));
    }

    #[test]
    fn a_ctime_without_fractions_may_be_of_any_moment_of_its_second() {
        let changed = changed_at(50_000);
        assert!(!changed.is_settled(at(50_999)) && !changed.is_settled(at(52_000)));
        assert!(changed.is_settled(at(52_001)));
    }

    #[test]
    fn a_ctime_in_the_future_is_never_settled() {
        assert!(!changed_at(99_001).is_settled(at(50_000)));
        assert!(!changed_at(1).is_settled(at(2)));
    }
}
