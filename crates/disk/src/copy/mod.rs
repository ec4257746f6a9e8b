//! Copies the files of an area, most of them while a sandbox is using it.
//!
//! 1. [`TreeCopy::copy_settled`], any number of times, while programs may change anything: copies what nobody is changing.
//! 2. [`TreeCopy::complete`], while nothing changes: copies what is missing or has changed since, and removes what is gone.
//!
//! The source is hostile. It is read by descriptors that no symbolic link and no mount can redirect, nothing in it can block
//! an open, and the first step ends after a time and a number of bytes and entries, whatever programs do meanwhile.
//!
//! Only the file systems below are known to set a file's ctime at each change, also those through mappings. On others, the
//! first step does nothing.

mod attributes;
mod content;
mod entry;
mod version;
mod walk;

use std::collections::HashMap;
use std::ffi::CStr;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use isopod_isolation::sys::btrfs;
use rustix::fs::{fstat, fstatfs, fstatvfs};

use super::folder;
use super::tree;
use version::Version;
use walk::Walk;

const EXT4: u64 = 0xef53;
const XFS: u64 = 0x5846_5342;

/// A directory at the top of the target while the copy is made. It has one name of each copied file that has several, so
/// that the next name becomes a link to it.
const LINKS: &CStr = c".isopod-links";

/// How often the first step goes through the tree. Each time, what has changed since should be less.
const MAX_ROUNDS: usize = 3;
/// When another round is not worth it: about what a disk writes within 100 ms.
const LITTLE: u64 = 64 << 20;
/// The bounds of the first step, and of each round. What they leave out is copied in the second step.
const MAX_TIME: Duration = Duration::from_secs(60);
const MAX_ENTRIES: u64 = 500_000;

/// What was copied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amount {
    /// Files, links and devices, without directories.
    pub files: u64,
    /// The content of files, without what the file system shares and without holes.
    pub bytes: u64,
}

/// How much a round of the first step may do.
#[derive(Clone, Copy, Debug)]
struct Bounds {
    bytes: u64,
    entries: u64,
    until: Instant,
}

/// A copy that is being made.
#[derive(Debug)]
pub(super) struct TreeCopy {
    source: OwnedFd,
    target: OwnedFd,
    links: OwnedFd,
    /// By inode number in the target: what it is a copy of. Whatever is not in here is copied again.
    versions: HashMap<u64, Version>,
    can_clone: bool,
}

impl TreeCopy {
    /// `target` is an empty directory to which nobody else writes.
    pub(super) fn new(source: OwnedFd, target: OwnedFd) -> io::Result<Self> {
        let links = folder::ensure_below(&target, LINKS)?;
        Ok(Self { source, target, links, versions: HashMap::new(), can_clone: true })
    }

    /// Copies what nobody is changing, at most `most` bytes.
    pub(super) fn copy_settled(&mut self, most: u64) -> io::Result<Amount> {
        let mut all = Amount::default();
        if !self.has_reliable_ctimes()? {
            return Ok(all);
        }
        let until = Instant::now() + MAX_TIME;
        for _ in 0..MAX_ROUNDS {
            let left = most.saturating_sub(all.bytes);
            let bounds = Bounds { bytes: left.min(self.free_space()? / 2), entries: MAX_ENTRIES, until };
            let amount = Walk::new(self, Some(bounds)).run()?;
            all.files += amount.files;
            all.bytes += amount.bytes;
            if amount.bytes < LITTLE {
                break;
            }
        }
        Ok(all)
    }

    /// Makes the target a copy of the source, which nothing may change meanwhile.
    pub(super) fn complete(mut self) -> io::Result<Amount> {
        let amount = Walk::new(&mut self, None).run()?;
        tree::remove(&self.target, LINKS, &AtomicBool::new(false))?;
        attributes::copy_times(&self.target, &fstat(&self.source)?)?;
        Ok(amount)
    }

    /// Programs without a limit could otherwise have the copy fill the disk that they filled half.
    fn free_space(&self) -> io::Result<u64> {
        let figures = fstatvfs(&self.target)?;
        Ok(figures.f_bavail.saturating_mul(figures.f_frsize))
    }

    fn has_reliable_ctimes(&self) -> io::Result<bool> {
        let kind = fstatfs(&self.source)?.f_type as u64;
        Ok([EXT4, XFS, btrfs::SUPER_MAGIC].contains(&kind))
    }
}
