//! Walks a tree that others change at the same time. Entries that vanish are skipped.

use std::collections::VecDeque;
use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use isopod_store::secrets::new_name;
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use crate::path::{InnerPath, UNFINISHED};
use crate::tree::Tree;

/// The maximum depth of nested directories. Each level holds a descriptor while it is visited.
const MAX_DEPTH: usize = 100;

/// The maximum number of entries in one tree. A workspace has at most 200,000 names. One that grew in another way must
/// not exhaust our memory.
const MAX_FOUND: usize = 250_000;

/// An entry. Names that are not UTF-8 are shown with replacement characters.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    pub(crate) path: InnerPath,
    pub(crate) stat: Stat,
    /// The target of a link.
    pub(crate) target: Option<String>,
}

impl Found {
    pub(crate) fn kind(&self) -> FileType {
        FileType::from_raw_mode(self.stat.st_mode)
    }

    pub(crate) fn size(&self) -> u64 {
        u64::try_from(self.stat.st_size).unwrap_or(0)
    }

    /// The time of the last modification.
    pub(crate) fn modified_ms(&self) -> i64 {
        let nanos = i64::try_from(self.stat.st_mtime_nsec).unwrap_or(0);
        self.stat.st_mtime.saturating_mul(1000).saturating_add(nanos / 1_000_000)
    }

    /// Whether this is an incomplete file that never got its name.
    pub(crate) fn is_unfinished(&self) -> bool {
        self.path.split().is_some_and(|(_, name)| name.starts_with(UNFINISHED))
    }
}

impl Tree {
    /// Lists a directory down to `depth` levels, sorted by path. Links are listed but not followed.
    pub(crate) fn list(&self, path: &InnerPath, depth: usize) -> io::Result<Vec<Found>> {
        let mut found = Vec::new();
        collect(&self.open_dir(path)?, path, depth.min(MAX_DEPTH), &mut found)?;
        found.sort_by(|left, right| left.path.cmp(&right.path));
        Ok(found)
    }

    /// Removes an entry. A directory is removed with its content.
    pub(crate) fn remove_all(&self, path: &InnerPath) -> io::Result<()> {
        let (parent, name) = path.split().ok_or(Errno::BUSY)?;
        let parent = self.open_dir(&parent)?;
        let mut names = VecDeque::from([name.to_owned()]);
        // Entries below the maximum depth are moved up to the parent and removed from there afterwards.
        while let Some(name) = names.pop_front() {
            let name = std::ffi::CString::new(name)?;
            remove(parent.as_fd(), parent.as_fd(), &name, 0, &mut names)?;
        }
        Ok(())
    }
}

fn collect(dir: &OwnedFd, path: &InnerPath, depth: usize, found: &mut Vec<Found>) -> io::Result<()> {
    if depth == 0 {
        return Ok(());
    }
    for entry in Dir::read_from(dir)? {
        let entry = entry?;
        let name = entry.file_name();
        if is_dots(name) {
            continue;
        }
        let stat = match rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => stat,
            Err(Errno::NOENT) => continue,
            Err(error) => return Err(error.into()),
        };
        let kind = FileType::from_raw_mode(stat.st_mode);
        let path = path.join(&name.to_string_lossy());
        let target = match kind {
            FileType::Symlink => rustix::fs::readlinkat(dir, name, Vec::new()).ok(),
            _ => None,
        };
        let target = target.map(|target| target.to_string_lossy().into_owned());
        if found.len() == MAX_FOUND {
            return Err(Errno::OVERFLOW.into());
        }
        found.push(Found { path: path.clone(), stat, target });
        if kind == FileType::Directory
            && let Some(below) = open_below(dir.as_fd(), name)?
        {
            collect(&below, &path, depth - 1, found)?;
        }
    }
    Ok(())
}

fn remove(
    top: BorrowedFd<'_>,
    dir: BorrowedFd<'_>,
    name: &CStr,
    depth: usize,
    later: &mut VecDeque<String>,
) -> io::Result<()> {
    match rustix::fs::unlinkat(dir, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => return Ok(()),
        Err(Errno::ISDIR | Errno::PERM) => {}
        Err(error) => return Err(error.into()),
    }
    if depth == MAX_DEPTH {
        let moved = format!("{UNFINISHED}{}", new_name());
        rustix::fs::renameat(dir, name, top, moved.as_str())?;
        later.push_back(moved);
        return Ok(());
    }
    if let Some(below) = open_below(dir, name)? {
        for entry in Dir::read_from(&below)? {
            let entry = entry?;
            if !is_dots(entry.file_name()) {
                remove(top, below.as_fd(), entry.file_name(), depth + 1, later)?;
            }
        }
    }
    match rustix::fs::unlinkat(dir, name, AtFlags::REMOVEDIR) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Returns `None` if it is gone or no longer a directory.
fn open_below(dir: BorrowedFd<'_>, name: &CStr) -> io::Result<Option<OwnedFd>> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match rustix::fs::openat(dir, name, flags, Mode::empty()) {
        Ok(below) => Ok(Some(below)),
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn is_dots(name: &CStr) -> bool {
    matches!(name.to_bytes(), b"." | b"..")
}
