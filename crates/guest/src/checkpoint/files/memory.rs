//! The directories whose files may be in memory.

use std::os::fd::OwnedFd;

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, fstatfs, openat2};

/// The number of a place is its position here. Other guests know these numbers, so add new ones at the end.
const PATHS: [&str; 3] = ["/tmp", "/run", "/dev/shm"];
/// The kind of file system that is in memory. Its type differs between C libraries.
const TMPFS: i128 = 0x0102_1994;

/// A directory that is in memory.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) number: u8,
    pub(super) path: String,
    pub(super) directory: OwnedFd,
}

impl Place {
    /// All that are in memory. In some templates, some of them are on disk.
    pub(super) fn all() -> Vec<Self> {
        (0..).zip(PATHS).filter_map(|(number, path)| Self::open(number, path)).collect()
    }

    pub(super) fn open(number: u8, path: &str) -> Option<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = openat2(CWD, path, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS).ok()?;
        let kind = i128::from(fstatfs(&directory).ok()?.f_type);
        (kind == TMPFS).then(|| Self { number, path: path.to_owned(), directory })
    }
}
