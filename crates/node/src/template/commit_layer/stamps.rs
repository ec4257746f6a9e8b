//! A snapshot of a writable layer, to find changes later: names, and a stamp for each.
//!
//! Names are bytes and never text, because two names that are not UTF-8 may look the same as text. They form a tree
//! like the directories. A change is found by walking both side by side, so no path is resolved twice.

use std::collections::BTreeMap;
use std::ffi::CStr;
use std::os::fd::OwnedFd;

use isopod_image::unpack::{Quota, QuotaError};
use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, Stat, openat};
use rustix::io::Errno;

use super::{CommitError, LEFT_OUT_OF_BUILDS};

/// Deeper than any reasonable tree, and few enough for a thread's stack and for descriptors. The same as for archives.
const MAX_DEPTH: usize = 200;
/// The limit on all names together, because they stay in memory during a build.
const MAX_NAME_BYTES: usize = 64 << 20;

pub(super) const DIRECTORY: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// What a writable layer held at the last commit, by part.
#[derive(Debug, Default)]
pub(crate) struct Stamps {
    pub(super) root: Names,
    pub(super) usr: Names,
}

/// The contents of a directory.
#[derive(Debug, Default)]
pub(super) struct Names {
    pub(super) entries: BTreeMap<Box<CStr>, Known>,
}

/// An entry of a directory.
#[derive(Debug)]
pub(super) struct Known {
    pub(super) stamp: Stamp,
    /// The contents, if it is a directory.
    pub(super) below: Names,
}

/// Identifies a version of a file. It uses the ctime, the only time that programs cannot set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stamp {
    pub(super) inode: u64,
    changed: (i64, u32),
    mode: u32,
}

impl Stamp {
    pub(super) fn of(stat: &Stat) -> Self {
        let nanoseconds = u32::try_from(stat.st_ctime_nsec).unwrap_or_default();
        Self { inode: stat.st_ino, changed: (stat.st_ctime, nanoseconds), mode: stat.st_mode }
    }
}

impl Stamps {
    /// Reads what a writable layer holds now.
    pub(crate) fn read(area: &std::path::Path, quota: &Quota) -> Result<Self, CommitError> {
        let read = |part: &str, left_out: &[&str]| {
            let mut walk = Walk::new(left_out, quota);
            let top = openat(CWD, area.join(part), DIRECTORY, Mode::empty()).map_err(|error| walk.failed(error))?;
            read_directory(&mut walk, &top)
        };
        Ok(Self { root: read("root", LEFT_OUT_OF_BUILDS)?, usr: read("usr", &[])? })
    }
}

fn read_directory(walk: &mut Walk<'_>, directory: &OwnedFd) -> Result<Names, CommitError> {
    let mut names = Names::default();
    for name in walk.names(directory)? {
        walk.enter(&name)?;
        if !walk.is_left_out() {
            let stat = walk.stat(directory, &name)?;
            let below = match FileType::from_raw_mode(stat.st_mode) {
                FileType::Directory => {
                    let below = openat(directory, name.as_ref(), DIRECTORY, Mode::empty());
                    read_directory(walk, &below.map_err(|error| walk.failed(error))?)?
                }
                _ => Names::default(),
            };
            names.entries.insert(name, Known { stamp: Stamp::of(&stat), below });
        }
        walk.leave();
    }
    Ok(names)
}

/// The position in a walk through a layer, and its limits.
pub(super) struct Walk<'a> {
    left_out: &'a [&'a str],
    pub(super) quota: &'a Quota,
    /// From the root, separated by slashes. For messages and [`Walk::is_left_out`].
    path: Vec<u8>,
    /// The offset in the path at which each name starts.
    starts: Vec<usize>,
    name_bytes: usize,
}

impl<'a> Walk<'a> {
    pub(super) fn new(left_out: &'a [&'a str], quota: &'a Quota) -> Self {
        Self { left_out, quota, path: Vec::new(), starts: Vec::new(), name_bytes: 0 }
    }

    /// The names in a directory. Each is counted before it is kept.
    pub(super) fn names(&mut self, directory: &OwnedFd) -> Result<Vec<Box<CStr>>, CommitError> {
        let mut names = Vec::new();
        for entry in Dir::read_from(directory).map_err(|error| self.failed(error))? {
            let entry = entry.map_err(|error| self.failed(error))?;
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            self.quota.take_entry()?;
            self.name_bytes += name.to_bytes().len();
            if self.name_bytes > MAX_NAME_BYTES {
                return Err(CommitError::Names(MAX_NAME_BYTES));
            }
            names.push(name.into());
        }
        Ok(names)
    }

    /// Moves to an entry of the current directory.
    pub(super) fn enter(&mut self, name: &CStr) -> Result<(), CommitError> {
        if self.starts.len() >= MAX_DEPTH {
            return Err(CommitError::Depth(MAX_DEPTH));
        }
        self.starts.push(self.path.len());
        if !self.path.is_empty() {
            self.path.push(b'/');
        }
        self.path.extend_from_slice(name.to_bytes());
        Ok(())
    }

    /// Moves back to the directory.
    pub(super) fn leave(&mut self) {
        self.path.truncate(self.starts.pop().unwrap_or_default());
    }

    pub(super) fn path(&self) -> &[u8] {
        &self.path
    }

    pub(super) fn is_left_out(&self) -> bool {
        self.left_out.iter().any(|path| path.as_bytes() == self.path)
    }

    pub(super) fn stat(&self, directory: &OwnedFd, name: &CStr) -> Result<Stat, CommitError> {
        rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW).map_err(|error| self.failed(error))
    }

    pub(super) fn failed(&self, error: Errno) -> CommitError {
        self.failed_with(error.into())
    }

    pub(super) fn failed_with(&self, source: std::io::Error) -> CommitError {
        let refused = source.get_ref().and_then(|inner| inner.downcast_ref::<QuotaError>());
        if let Some(refused) = refused {
            return CommitError::Quota(refused.clone());
        }
        CommitError::Copy { path: String::from_utf8_lossy(&self.path).into_owned(), source }
    }
}
