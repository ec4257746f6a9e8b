//! A directory that no path leaves: the kernel resolves every path as if the directory were `/`.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags, mkdirat, openat2, statat, unlinkat};
use rustix::io::Errno;

/// Deeper than any real archive, and small enough that a removal never runs out of descriptors.
const MAX_DEPTH: usize = 200;

pub(super) struct Tree {
    root: OwnedFd,
    /// The directory of the last entry, because archives list the files of a directory one after the other.
    last: Option<(PathBuf, OwnedFd)>,
}

impl Tree {
    pub(super) fn new(root: OwnedFd) -> Self {
        Self { root, last: None }
    }

    pub(super) fn root(&self) -> &OwnedFd {
        &self.root
    }

    /// Opens something that exists, so that links to it can be created. If it is itself a link, it is not followed.
    pub(super) fn open_path(&self, path: &Path) -> io::Result<OwnedFd> {
        self.open(path, OFlags::PATH | OFlags::NOFOLLOW)
    }

    /// Makes room for an entry: removes what has its name, and creates the directories that lead to it.
    pub(super) fn place_for<'a>(&mut self, path: &'a Path) -> io::Result<(OwnedFd, &'a OsStr)> {
        let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
        let parent = self.parent_of(path)?;
        match unlinkat(&parent, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(Errno::ISDIR) => {
                self.last = None;
                remove_tree(&parent, name, MAX_DEPTH)?;
            }
            Err(error) => return Err(error.into()),
        }
        Ok((parent, name))
    }

    /// Opens a directory, and creates it if it does not exist. With `replaces`, anything else of this name is removed
    /// first.
    pub(super) fn ensure_directory(&mut self, path: &Path, replaces: bool) -> io::Result<OwnedFd> {
        if path.components().count() > MAX_DEPTH {
            return Err(Errno::NAMETOOLONG.into());
        }
        let Some(name) = path.file_name() else { return self.open(Path::new("."), OFlags::RDONLY | OFlags::DIRECTORY) };
        if replaces {
            let parent = self.parent_of(path)?;
            let stat = statat(&parent, name, AtFlags::SYMLINK_NOFOLLOW);
            if stat.is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) != FileType::Directory) {
                unlinkat(&parent, name, AtFlags::empty())?;
            }
        }
        match self.open(path, OFlags::RDONLY | OFlags::DIRECTORY) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let parent = self.parent_of(path)?;
                self.check_depth(&parent)?;
                mkdirat(&parent, name, Mode::from_raw_mode(0o755))?;
                self.open(path, OFlags::RDONLY | OFlags::DIRECTORY)
            }
            other => other,
        }
    }

    /// Links in the archive can make a short name lead deep down, so the kernel is asked how deep a directory is.
    fn check_depth(&self, directory: &OwnedFd) -> io::Result<()> {
        let parts = |file: &OwnedFd| {
            let path = rustix::fs::readlink(format!("/proc/self/fd/{}", file.as_raw_fd()), Vec::new())?;
            Ok::<_, Errno>(path.to_bytes().iter().filter(|byte| **byte == b'/').count())
        };
        match parts(directory)?.saturating_sub(parts(&self.root)?) < MAX_DEPTH {
            true => Ok(()),
            false => Err(Errno::NAMETOOLONG.into()),
        }
    }

    fn parent_of(&mut self, path: &Path) -> io::Result<OwnedFd> {
        let parent = path.parent().unwrap_or(Path::new(""));
        if let Some((last, directory)) = &self.last
            && last == parent
        {
            return directory.try_clone();
        }
        let directory = self.ensure_directory(parent, false)?;
        self.last = Some((parent.to_owned(), directory.try_clone()?));
        Ok(directory)
    }

    fn open(&self, path: &Path, flags: OFlags) -> io::Result<OwnedFd> {
        let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
        Ok(openat2(&self.root, path, flags | OFlags::CLOEXEC, Mode::empty(), resolve)?)
    }
}

fn remove_tree(parent: impl AsFd, name: &OsStr, depth: usize) -> io::Result<()> {
    let deeper = depth.checked_sub(1).ok_or(Errno::NAMETOOLONG)?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let directory = rustix::fs::openat(&parent, name, flags, Mode::empty())?;
    for entry in Dir::read_from(&directory)? {
        let entry = entry?;
        let inner = entry.file_name();
        if matches!(inner.to_bytes(), b"." | b"..") {
            continue;
        }
        match unlinkat(&directory, inner, AtFlags::empty()) {
            Err(Errno::ISDIR) => {
                remove_tree(&directory, std::os::unix::ffi::OsStrExt::from_bytes(inner.to_bytes()), deeper)?;
            }
            other => other?,
        }
    }
    Ok(unlinkat(&parent, name, AtFlags::REMOVEDIR)?)
}
