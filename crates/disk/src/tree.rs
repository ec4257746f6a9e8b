//! Deletes a directory tree that a hostile program has filled.
//!
//! It works only on descriptors, follows no symbolic link and enters no other mount. It needs constant depth: a
//! directory inside the tree that is not empty is first moved to the top of the tree. So 10,000 levels need neither
//! 10,000 stack frames nor 10,000 open descriptors. It may be interrupted and run again at any point.

use std::ffi::{CStr, CString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use isopod_isolation::sys::btrfs;
use rustix::fs::{AtFlags, RenameFlags};
use rustix::io::Errno;

use super::folder;

/// How many names are read at a time. A larger directory is read several times.
const BATCH: usize = 4096;

/// Deletes a tree that a hostile program may have filled. It is not an error if the tree does not exist.
pub fn remove_tree(path: &Path) -> io::Result<()> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let name = CString::new(name.as_bytes()).map_err(|_| io::ErrorKind::InvalidInput)?;
    // The path to the tree is trusted and may contain a link. Only what is below it is untrusted.
    let parent = match File::open(parent) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        other => other?,
    };
    remove(&parent, &name, &AtomicBool::new(false))?;
    Ok(())
}

/// The result of a deletion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Removal {
    /// Nothing of the tree is left.
    Done,
    /// Stopped early. The rest of the tree is where it was.
    Stopped,
}

/// Deletes `name` in `parent`, whatever it is. `stop` ends the deletion early.
///
/// What cannot be deleted (a mount point) stays, together with its parents. Everything else is deleted, and the last
/// error is returned. A subvolume with subvolumes inside is taken apart: the inner ones become separate trees beside
/// this one.
pub(super) fn remove(parent: impl AsFd, name: &CStr, stop: &AtomicBool) -> Result<Removal, Errno> {
    let parent = parent.as_fd();
    let on_btrfs = btrfs::is_btrfs(parent).unwrap_or(false);
    if remove_easily(parent, name, on_btrfs)? {
        return Ok(Removal::Done);
    }
    let mut tree = Tree { top: folder::open_below(parent, name)?, parent, on_btrfs, moved: 0 };
    match tree.empty(stop)? {
        Removal::Stopped => Ok(Removal::Stopped),
        Removal::Done => rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR).map(|()| Removal::Done),
    }
}

struct Tree<'a> {
    /// The directory to which all others are moved.
    top: OwnedFd,
    /// The directory that contains the tree.
    parent: BorrowedFd<'a>,
    on_btrfs: bool,
    /// Counts the moved directories, for their names.
    moved: u64,
}

impl Tree<'_> {
    /// Empties the top in rounds, because each round may move directories there.
    fn empty(&mut self, stop: &AtomicBool) -> Result<Removal, Errno> {
        loop {
            let entries = folder::entries(&self.top, BATCH)?;
            if entries.is_empty() {
                return Ok(Removal::Done);
            }
            let mut progress = Progress::default();
            for entry in &entries {
                if stop.load(Ordering::Relaxed) {
                    return Ok(Removal::Stopped);
                }
                let result = self.remove_from_top(entry, stop);
                progress.note(result);
            }
            progress.check()?;
        }
    }

    fn remove_from_top(&mut self, entry: &folder::Entry, stop: &AtomicBool) -> Result<(), Errno> {
        if !entry.may_be_directory {
            return unlink(self.top.as_fd(), &entry.name);
        }
        if remove_easily(self.top.as_fd(), &entry.name, self.on_btrfs)? {
            return Ok(());
        }
        let directory = folder::open_below(&self.top, entry.name.as_c_str())?;
        if self.on_btrfs && btrfs::is_subvolume(directory.as_fd()).unwrap_or(false) {
            return move_to(self.parent, self.top.as_fd(), &entry.name, &mut self.moved);
        }
        match self.empty_below(&directory, stop)? {
            Removal::Done => rustix::fs::unlinkat(&self.top, &entry.name, AtFlags::REMOVEDIR),
            Removal::Stopped => Ok(()),
        }
    }

    /// Empties a directory directly below the top. Moves directories in it that are not empty to the top.
    fn empty_below(&mut self, directory: &OwnedFd, stop: &AtomicBool) -> Result<Removal, Errno> {
        loop {
            let entries = folder::entries(directory, BATCH)?;
            if entries.is_empty() {
                return Ok(Removal::Done);
            }
            let mut progress = Progress::default();
            for entry in &entries {
                if stop.load(Ordering::Relaxed) {
                    return Ok(Removal::Stopped);
                }
                let result = self.remove_or_move(directory, entry);
                progress.note(result);
            }
            progress.check()?;
        }
    }

    fn remove_or_move(&mut self, directory: &OwnedFd, entry: &folder::Entry) -> Result<(), Errno> {
        if !entry.may_be_directory {
            return unlink(directory.as_fd(), &entry.name);
        }
        if remove_easily(directory.as_fd(), &entry.name, self.on_btrfs)? {
            return Ok(());
        }
        move_to(self.top.as_fd(), directory.as_fd(), &entry.name, &mut self.moved)
    }
}

/// Moves a directory to a free name. `count` makes it likely that the next name is free.
fn move_to(target: BorrowedFd<'_>, parent: BorrowedFd<'_>, name: &CStr, count: &mut u64) -> Result<(), Errno> {
    loop {
        *count += 1;
        let new_name = format!("moved-{}-{count}", std::process::id());
        match rustix::fs::renameat_with(parent, name, target, &new_name, RenameFlags::NOREPLACE) {
            Err(Errno::EXIST) => {}
            other => return other,
        }
    }
}

/// Whether a round over a directory changed anything. If not, another round would not either.
#[derive(Default)]
struct Progress {
    done: usize,
    error: Option<Errno>,
}

impl Progress {
    fn note(&mut self, result: Result<(), Errno>) {
        match result {
            Ok(()) => self.done += 1,
            Err(errno) => self.error = Some(errno),
        }
    }

    fn check(&self) -> Result<(), Errno> {
        match self.error {
            Some(errno) if self.done == 0 => Err(errno),
            _ => Ok(()),
        }
    }
}

/// Deletes a file, an empty directory or a subvolume in one step. Returns false for a directory that is not empty.
fn remove_easily(parent: BorrowedFd<'_>, name: &CStr, on_btrfs: bool) -> Result<bool, Errno> {
    match rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR) {
        Ok(()) | Err(Errno::NOENT) => Ok(true),
        Err(Errno::NOTDIR) => unlink(parent, name).map(|()| true),
        Err(Errno::NOTEMPTY | Errno::EXIST) => Ok(on_btrfs && destroy_if_subvolume(parent, name)),
        Err(errno) => Err(errno),
    }
}

/// Two processes may delete the same tree. What the other one deleted counts as deleted.
fn unlink(parent: BorrowedFd<'_>, name: &CStr) -> Result<(), Errno> {
    match rustix::fs::unlinkat(parent, name, AtFlags::empty()) {
        Err(Errno::NOENT) => Ok(()),
        other => other,
    }
}

fn destroy_if_subvolume(parent: BorrowedFd<'_>, name: &CStr) -> bool {
    let Ok(text) = name.to_str() else { return false };
    let is_subvolume = |fd: OwnedFd| btrfs::is_subvolume(fd.as_fd()).unwrap_or(false);
    folder::open_below(parent, name).is_ok_and(is_subvolume) && btrfs::destroy_subvolume(parent, text).is_ok()
}

/// The names directly below a directory, for the rounds over the trash.
pub(super) fn names(directory: impl AsFd) -> Result<Vec<CString>, Errno> {
    Ok(folder::entries(directory, usize::MAX)?.into_iter().map(|entry| entry.name).collect())
}
