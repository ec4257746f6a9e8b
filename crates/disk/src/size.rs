//! How large the image should be: a pure function of the space in the image and on the host's disk.
//!
//! Everything in the image is allocated on the host's disk, so an accepted write always finds its block. The image is
//! kept a little larger than its content (the headroom). It never takes the last of the host's disk (the reserve),
//! which is for the server's own records and for other programs.

use std::path::Path;

/// In a smaller image, btrfs uses most of the space for itself.
pub(super) const MIN_SIZE: u64 = 256 << 20;

/// How much writers may take at once, before the image has grown again.
const MAX_HEADROOM: u64 = 2 << 30;
const MIN_HEADROOM: u64 = 64 << 20;

const MIN_RESERVE: u64 = 256 << 20;
const MAX_RESERVE: u64 = 1 << 30;

/// Smaller changes are not worth it.
const STEP: u64 = 16 << 20;

/// With less space than this, file data and metadata share their block groups. On a small file system, separate groups
/// for data would leave none for metadata, and not even an empty file could be created.
const MIXED_BELOW: u64 = 8 << 30;

/// The host's disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct HostSpace {
    /// The space that is free for unprivileged users.
    pub(super) free: u64,
    pub(super) total: u64,
}

/// How much may still be written to a directory's disk before only its reserve is left, which is for the server's
/// records and for other programs. Zero if the disk does not report it.
pub fn available_at(directory: &Path) -> u64 {
    HostSpace::of(directory).map_or(0, |host| host.available())
}

/// The space in an image and on its host's disk at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ImageSpace {
    pub(super) size: u64,
    /// How much of the image can still be written.
    pub(super) free: u64,
    /// No space is left for metadata, however much is free for data.
    pub(super) is_starved: bool,
    pub(super) host: HostSpace,
    /// The maximum size of the image.
    pub(super) max_size: u64,
}

impl HostSpace {
    /// Reads the space of the disk that a directory is on.
    pub(super) fn of(directory: &Path) -> std::io::Result<Self> {
        let figures = rustix::fs::statvfs(directory)?;
        let bytes = |blocks: u64| blocks.saturating_mul(figures.f_frsize);
        Ok(Self { free: bytes(figures.f_bavail), total: bytes(figures.f_blocks) })
    }

    /// How much the image leaves to others.
    pub(super) fn reserve(&self) -> u64 {
        (self.total / 50).clamp(MIN_RESERVE, MAX_RESERVE)
    }

    /// How much the image may still take.
    pub(super) fn available(&self) -> u64 {
        self.free.saturating_sub(self.reserve())
    }
}

impl ImageSpace {
    /// How much the image can still grow.
    pub(super) fn growable(&self) -> u64 {
        self.host.available().min(self.max_size.saturating_sub(self.size))
    }

    /// The size that the image should have now. This is its current size if nothing needs to change.
    pub(super) fn wanted_size(&self) -> u64 {
        let headroom = headroom(self.free + self.growable());
        let used = self.size - self.free;
        let wanted = if self.free < headroom {
            used + headroom + headroom / 2
        } else if self.is_starved && self.free <= 2 * headroom {
            self.size + headroom / 2
        } else if 2 * self.free > 5 * headroom {
            (used + 2 * headroom).max(MIN_SIZE)
        } else {
            self.size
        };
        let wanted = wanted.min(self.size + self.growable()) / STEP * STEP;
        if wanted.abs_diff(self.size) < STEP { self.size } else { wanted }
    }
}

/// The size of a new image, or `None` if not even a small one fits.
pub(super) fn first_size(host: HostSpace, max_size: u64) -> Option<u64> {
    let available = host.available().min(max_size);
    let wanted = (headroom(available) / 2 * 3).clamp(MIN_SIZE, available.max(MIN_SIZE)) / STEP * STEP;
    (wanted <= available).then_some(wanted)
}

/// Whether data and metadata share the block groups of a new image.
pub(super) fn is_mixed(host: HostSpace, max_size: u64) -> bool {
    host.available().min(max_size) < MIXED_BELOW
}

/// On a small disk the headroom is smaller.
fn headroom(possible: u64) -> u64 {
    (possible / 4).clamp(MIN_HEADROOM, MAX_HEADROOM)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const GIB: u64 = 1 << 30;
    const MIB: u64 = 1 << 20;

    fn space(size: u64, free: u64, host_free: u64, host_total: u64) -> ImageSpace {
        let host = HostSpace { free: host_free, total: host_total };
        ImageSpace { size, free, is_starved: false, host, max_size: u64::MAX }
    }

    #[test]
    fn a_new_image_takes_a_part_of_what_is_free() {
        let first = |free, total| first_size(HostSpace { free, total }, u64::MAX);
        assert_eq!(first(100 * GIB, 200 * GIB), Some(3 * GIB));
        assert!(first(2 * GIB, 2 * GIB).unwrap() < GIB);
        assert_eq!(first(300 * MIB, 2 * GIB), None);
        assert_eq!(first_size(HostSpace { free: 100 * GIB, total: 200 * GIB }, 8 * MIB), None);
    }

    #[test]
    fn an_image_grows_before_it_is_full_and_shrinks_when_it_is_empty() {
        assert!(space(3 * GIB, GIB, 50 * GIB, 200 * GIB).wanted_size() > 4 * GIB);
        assert_eq!(space(3 * GIB, 3 * GIB, 50 * GIB, 200 * GIB).wanted_size(), 3 * GIB);
        assert_eq!(space(50 * GIB, 49 * GIB, 50 * GIB, 200 * GIB).wanted_size(), 5 * GIB);
    }

    #[test]
    fn the_hosts_reserve_is_never_taken() {
        assert_eq!(space(3 * GIB, 0, 2 * GIB, 100 * GIB).wanted_size(), 3 * GIB + 384 * MIB);
        assert_eq!(space(3 * GIB, 0, GIB, 100 * GIB).wanted_size(), 3 * GIB);
        assert_eq!(space(3 * GIB, 0, 0, 100 * GIB).wanted_size(), 3 * GIB);
    }

    #[test]
    fn what_is_free_goes_back_to_a_host_that_lacks_its_reserve() {
        assert!(space(8 * GIB, 4 * GIB, 0, 100 * GIB).wanted_size() <= 6 * GIB);
    }

    #[test]
    fn an_image_without_room_for_metadata_grows() {
        let starved = ImageSpace { is_starved: true, ..space(30 * GIB, 3 * GIB, 50 * GIB, 200 * GIB) };
        assert!(starved.wanted_size() > 30 * GIB);
    }

    proptest! {
        #[test]
        fn a_change_respects_what_is_used_the_reserve_and_the_bound(
            size in MIN_SIZE..1000 * GIB,
            free_percent in 0_u64..=100,
            host_free in 0..1000 * GIB,
            host_more in 0..1000 * GIB,
            beyond in 0..1000 * GIB,
            is_starved: bool,
        ) {
            let (free, bound) = (size / 100 * free_percent, size + beyond);
            let host = HostSpace { free: host_free, total: host_free + host_more };
            let space = ImageSpace { size, free, is_starved, host, max_size: bound };
            let wanted = space.wanted_size();
            prop_assert!(wanted >= size - free);
            if wanted > size {
                prop_assert!(wanted - size <= host_free - host.reserve());
                prop_assert!(wanted <= bound);
            }
            // One change is enough, unless the host lacks its reserve. In that case it gets the free space bit by bit.
            prop_assume!(host_free >= host.reserve());
            let free_then = (free + wanted).saturating_sub(size);
            let host_then = HostSpace { free: (host_free + size).saturating_sub(wanted), ..host };
            let then = ImageSpace { size: wanted, free: free_then, is_starved: false, host: host_then, max_size: bound };
            prop_assert!(then.wanted_size().abs_diff(wanted) <= 2 * STEP, "{} then {}", wanted, then.wanted_size());
        }
    }
}
