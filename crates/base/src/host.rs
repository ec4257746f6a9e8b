//! Reads the host's tree. Every path is resolved below one root, and symbolic links are never followed. So a link in an
//! allow-listed directory cannot make us read files that are not on the list.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;

use super::error::BaseError;

/// The root of the host's files. It is `/` except in tests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostRoot(pub PathBuf);

impl Default for HostRoot {
    fn default() -> Self {
        Self(PathBuf::from("/"))
    }
}

/// The opened host tree.
#[derive(Debug)]
pub(super) struct Host {
    root: OwnedFd,
    path: PathBuf,
}

/// The permission bit that every user needs to read a file.
const OTHER_READ: u32 = 0o004;
/// The permission bits that every user needs to list and enter a directory.
const OTHER_READ_ENTER: u32 = 0o005;

impl Host {
    pub(super) fn open_root(root: &HostRoot) -> Result<Self, BaseError> {
        let path = root.0.canonicalize().map_err(|source| BaseError::Store {
            action: "find the host's root",
            path: root.0.clone(),
            source,
        })?;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open(&path, flags, Mode::empty())
            .map_err(|source| BaseError::Host { path: path.clone(), source })?;
        Ok(Self { root, path })
    }

    /// The path of the root, for callers that mount.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Opens `relative` without following links. If the last component is a link, this fails with `ELOOP`, except with
    /// `O_PATH`.
    pub(super) fn open(&self, relative: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        let flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        rustix::fs::openat2(&self.root, relative, flags, Mode::empty(), resolve)
    }

    /// The metadata of `relative` itself, without following a link. `None` if it does not exist.
    pub(super) fn stat(&self, relative: &Path) -> Option<Stat> {
        let fd = self.open(relative, OFlags::PATH).ok()?;
        rustix::fs::statat(fd, "", AtFlags::EMPTY_PATH).ok()
    }

    /// Resolves `relative` as a program in the sandbox would, following links. Returns the final path and its metadata.
    pub(super) fn resolve(&self, relative: &Path) -> Option<(PathBuf, Stat)> {
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let fd = rustix::fs::openat2(&self.root, relative, flags, Mode::empty(), ResolveFlags::IN_ROOT).ok()?;
        let stat = rustix::fs::fstat(&fd).ok()?;
        let path = std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd())).ok()?;
        Some((path.strip_prefix(&self.path).ok()?.to_owned(), stat))
    }

    pub(super) fn exists(&self, relative: &Path) -> bool {
        self.stat(relative).is_some()
    }

    pub(super) fn is_dir(&self, relative: &Path) -> bool {
        self.stat(relative).is_some_and(|stat| kind(&stat) == FileType::Directory)
    }

    /// The target of the link at `relative`.
    pub(super) fn read_link(&self, relative: &Path) -> Option<OsString> {
        let fd = self.open(relative, OFlags::PATH).ok()?;
        let target = rustix::fs::readlinkat(fd, "", Vec::new()).ok()?;
        Some(OsString::from_vec(target.into_bytes()))
    }

    /// The contents of a regular file that every user may read, up to `limit` bytes. `None` if it is no such file.
    pub(super) fn read_public(&self, relative: &Path, limit: u64) -> Option<Vec<u8>> {
        let (file, stat) = self.open_public(relative)?;
        let size = u64::try_from(stat.st_size).ok()?;
        if size > limit {
            return None;
        }
        let mut contents = Vec::with_capacity(usize::try_from(size).ok()?);
        file.take(limit).read_to_end(&mut contents).ok()?;
        Some(contents)
    }

    /// As [`Self::read_public`], but as text. Invalid UTF-8 is replaced.
    pub(super) fn read_text(&self, relative: &str) -> Option<String> {
        let contents = self.read_public(Path::new(relative), TEXT_LIMIT)?;
        Some(String::from_utf8_lossy(&contents).into_owned())
    }

    /// Reads a small text file of the caller, even if nobody else may read it.
    pub(super) fn read_own(&self, relative: &Path) -> Option<String> {
        let fd = self.open(relative, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY).ok()?;
        let stat = rustix::fs::fstat(&fd).ok()?;
        let is_small =
            kind(&stat) == FileType::RegularFile && u64::try_from(stat.st_size).is_ok_and(|s| s < TEXT_LIMIT);
        let mut contents = Vec::new();
        File::from(fd).take(TEXT_LIMIT).read_to_end(&mut contents).ok().filter(|_| is_small)?;
        Some(String::from_utf8_lossy(&contents).into_owned())
    }

    /// Opens a regular file that every user may read. The check uses the opened descriptor, so the file cannot be
    /// swapped.
    pub(super) fn open_public(&self, relative: &Path) -> Option<(File, Stat)> {
        // Non-blocking, so that a FIFO in the place of a file cannot hang us.
        let fd = self.open(relative, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY).ok()?;
        let stat = rustix::fs::fstat(&fd).ok()?;
        (kind(&stat) == FileType::RegularFile && is_public(&stat)).then(|| (File::from(fd), stat))
    }

    /// The sorted names in a directory. Empty if it is not a directory.
    pub(super) fn list(&self, relative: &Path) -> Vec<OsString> {
        let Ok(fd) = self.open(relative, OFlags::RDONLY | OFlags::DIRECTORY) else { return Vec::new() };
        list_fd(fd.as_fd())
    }
}

/// The largest configuration file that is read.
const TEXT_LIMIT: u64 = 16 << 20;

/// The sorted names in an open directory.
pub(super) fn list_fd(fd: impl AsFd) -> Vec<OsString> {
    let Ok(entries) = rustix::fs::Dir::read_from(fd) else { return Vec::new() };
    let mut names: Vec<OsString> = entries
        .filter_map(Result::ok)
        .map(|entry| OsStr::from_bytes(entry.file_name().to_bytes()).to_owned())
        .filter(|name| name != "." && name != "..")
        .collect();
    names.sort_unstable();
    names
}

pub(super) fn kind(stat: &Stat) -> FileType {
    FileType::from_raw_mode(stat.st_mode)
}

/// Whether every user of the host may read it. Root in a sandbox owns everything it sees, so files that the host hides
/// from its own users must not be in a layer at all.
pub(super) fn is_public(stat: &Stat) -> bool {
    let needed = if kind(stat) == FileType::Directory { OTHER_READ_ENTER } else { OTHER_READ };
    kind(stat) == FileType::Symlink || stat.st_mode & needed == needed
}
