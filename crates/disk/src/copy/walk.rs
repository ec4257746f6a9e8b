//! Goes through a tree once, from each directory to those below it.
//!
//! A tree may have any number of levels, so there is no recursion, and only the first levels keep their descriptors. Those
//! of deeper ones are closed on the way down, and found again on the way up as the parent of the level below. A program
//! may have moved that meanwhile, so they must be the same inodes as before.

use std::collections::HashMap;
use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat, fstat, mkdirat, openat, statat};
use rustix::io::Errno;

use super::entry::{kind, stat_if_there};
use super::version::{Version, now};
use super::{Amount, Bounds, LINKS, TreeCopy, attributes};
use crate::error::is_disk_full;
use crate::folder;
use crate::tree;

/// How many levels keep their descriptors. A process has only so many.
const OPEN_LEVELS: usize = 64;

pub(super) struct Walk<'a> {
    pub(super) copy: &'a mut TreeCopy,
    /// Set while programs may change the source. What cannot be copied then is left for later.
    bounds: Option<Bounds>,
    pub(super) amount: Amount,
    entries: u64,
    /// From the top to the present directory, which always has its descriptors.
    levels: Vec<Level>,
}

struct Level {
    directories: Option<Pair>,
    /// The source when it was entered.
    stat: Stat,
    /// Whether the target is known to have the names and attributes of the source.
    is_known: bool,
    /// Whether a later walk can rely on the version: each later change of the source gives another one.
    is_settled: bool,
    /// The directories below that are still to be copied.
    below: Vec<CString>,
}

/// A directory and its copy.
struct Pair {
    source: OwnedFd,
    target: OwnedFd,
}

impl<'a> Walk<'a> {
    pub(super) fn new(copy: &'a mut TreeCopy, bounds: Option<Bounds>) -> Self {
        Self { copy, bounds, amount: Amount::default(), entries: 0, levels: Vec::new() }
    }

    pub(super) fn run(mut self) -> io::Result<Amount> {
        let top = Pair { source: self.copy.source.try_clone()?, target: self.copy.target.try_clone()? };
        self.enter(top, false)?;
        while !self.is_exhausted()
            && let Some(level) = self.levels.last_mut()
        {
            match level.below.pop() {
                Some(name) => self.descend(&name)?,
                None => self.leave()?,
            }
        }
        Ok(self.amount)
    }

    pub(super) fn is_running(&self) -> bool {
        self.bounds.is_some()
    }

    pub(super) fn bytes_left(&self) -> u64 {
        self.bounds.map_or(u64::MAX, |bounds| bounds.bytes.saturating_sub(self.amount.bytes))
    }

    pub(super) fn until(&self) -> Option<Instant> {
        self.bounds.map(|bounds| bounds.until)
    }

    fn is_exhausted(&self) -> bool {
        self.bounds.is_some_and(|bounds| {
            self.entries >= bounds.entries || self.bytes_left() == 0 || Instant::now() >= bounds.until
        })
    }

    /// While programs run, any of them may remove or replace a file at any moment. What cannot be copied for another reason
    /// fails again later.
    fn tolerate(&self, result: io::Result<()>, name: &CStr) -> io::Result<()> {
        match result {
            Err(error) if self.is_running() && !is_disk_full(&error) => Ok(()),
            Err(error) => Err(named(name, error)),
            Ok(()) => Ok(()),
        }
    }

    fn descend(&mut self, name: &CStr) -> io::Result<()> {
        let is_deep = self.levels.len() > OPEN_LEVELS;
        let Some(level) = self.levels.last_mut() else { return Ok(()) };
        let Some(above) = &level.directories else { return Ok(()) };
        match open_pair(above, name, &mut self.copy.versions) {
            Ok((pair, is_new)) => {
                if is_deep {
                    level.directories = None;
                }
                let entered = self.enter(pair, is_new);
                self.tolerate(entered, name)
            }
            Err(error) => self.tolerate(Err(error), name),
        }
    }

    /// Copies everything in a directory but the directories below.
    fn enter(&mut self, pair: Pair, is_new: bool) -> io::Result<()> {
        let now = now();
        let (stat, there) = (fstat(&pair.source)?, fstat(&pair.target)?);
        let version = Version::of(&stat);
        let is_known = self.copy.versions.get(&there.st_ino) == Some(&version);
        let is_settled = self.is_running() && version.is_settled(now);
        if !is_known && !is_new {
            self.remove_others(&pair)?;
        }
        let below = self.copy_entries(&pair)?;
        self.levels.push(Level { directories: Some(pair), stat, is_known, is_settled, below });
        Ok(())
    }

    /// Returns the names of the directories below. They take space in the source's quota, which other names need not.
    fn copy_entries(&mut self, pair: &Pair) -> io::Result<Vec<CString>> {
        let mut directories = Vec::new();
        let is_top = self.levels.is_empty();
        for entry in Dir::read_from(&pair.source)? {
            let entry = entry?;
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") || (is_top && name == LINKS) {
                continue;
            }
            if self.is_exhausted() {
                break;
            }
            self.entries += 1;
            let copied = match statat(&pair.source, name, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(found) if kind(&found) == FileType::Directory => {
                    directories.push(name.to_owned());
                    Ok(())
                }
                Ok(found) => self.copy_entry(&pair.source, &pair.target, name, &found),
                Err(errno) => Err(errno.into()),
            };
            self.tolerate(copied, name)?;
        }
        Ok(directories)
    }

    /// Removes what the source no longer has, before anything is copied, which needs the space. One name after the other: a
    /// directory may have more than fit into memory.
    fn remove_others(&self, pair: &Pair) -> io::Result<()> {
        let is_top = self.levels.is_empty();
        for entry in Dir::read_from(&pair.target)? {
            let entry = entry?;
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") || (is_top && name == LINKS) {
                continue;
            }
            if stat_if_there(&pair.source, name)?.is_none() {
                tree::remove(&pair.target, name, &AtomicBool::new(false))?;
            }
        }
        Ok(())
    }

    /// Completes the present directory, after all that is below it, and goes on with the one above.
    fn leave(&mut self) -> io::Result<()> {
        let Some(level) = self.levels.pop() else { return Ok(()) };
        let Some(pair) = &level.directories else { return Ok(()) };
        if level.is_known {
            attributes::copy_times(&pair.target, &level.stat)?;
        } else {
            self.complete(pair, &level)?;
        }
        self.return_to_parent(pair)
    }

    fn complete(&mut self, pair: &Pair, level: &Level) -> io::Result<()> {
        let there = fstat(&pair.target)?.st_ino;
        self.copy.versions.remove(&there);
        let copied = attributes::copy(&pair.source, &pair.target, &level.stat);
        let is_copied = copied.is_ok();
        self.tolerate(copied, c".")?;
        if is_copied && level.is_settled {
            self.copy.versions.insert(there, Version::of(&level.stat));
        }
        Ok(())
    }

    fn return_to_parent(&mut self, pair: &Pair) -> io::Result<()> {
        let Some(parent) = self.levels.last_mut() else { return Ok(()) };
        if parent.directories.is_some() {
            return Ok(());
        }
        match parent_of(pair, &parent.stat) {
            Ok(found) => parent.directories = Some(found),
            // It was moved. Only the levels that have kept their descriptors can be found.
            Err(error) => {
                self.tolerate(Err(error), c"..")?;
                while self.levels.last().is_some_and(|level| level.directories.is_none()) {
                    self.levels.pop();
                }
            }
        }
        Ok(())
    }
}

/// Opens a directory of the source, and its copy. Returns whether the copy was missing and is new.
fn open_pair(above: &Pair, name: &CStr, versions: &mut HashMap<u64, Version>) -> io::Result<(Pair, bool)> {
    let source = folder::open_as_is(&above.source, name)?;
    let there = stat_if_there(&above.target, name)?;
    let is_new = there.is_none_or(|there| kind(&there) != FileType::Directory);
    if is_new {
        tree::remove(&above.target, name, &AtomicBool::new(false))?;
        mkdirat(&above.target, name, Mode::RWXU)?;
    }
    let target = folder::open_as_is(&above.target, name)?;
    if is_new {
        // A removed directory may have had this number.
        versions.remove(&fstat(&target)?.st_ino);
    }
    Ok((Pair { source, target }, is_new))
}

fn parent_of(below: &Pair, expected: &Stat) -> io::Result<Pair> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let source = openat(&below.source, c"..", flags, Mode::empty())?;
    let found = fstat(&source)?;
    if (found.st_dev, found.st_ino) != (expected.st_dev, expected.st_ino) {
        return Err(Errno::STALE.into());
    }
    Ok(Pair { source, target: openat(&below.target, c"..", flags, Mode::empty())? })
}

/// Says which file it was. Other kinds of errors would be taken for errors of the area itself.
fn named(name: &CStr, error: io::Error) -> io::Error {
    let kind = if is_disk_full(&error) { error.kind() } else { io::ErrorKind::Other };
    io::Error::new(kind, format!("{}: {error}", name.to_string_lossy()))
}
