//! Reading the host's tree. Every path is taken below one root and no symbolic link is ever followed on the way, so a
//! link in an allow-listed directory cannot make us read what is not on the list.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;

use super::error::BaseError;

/// Where the host's files are; `/` but in tests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostRoot(pub PathBuf);

impl Default for HostRoot {
    fn default() -> Self {
        Self(PathBuf::from("/"))
    }
}

/// The host's tree, opened.
#[derive(Debug)]
pub(super) struct Host {
    root: OwnedFd,
    path: PathBuf,
}

/// The permission bits that "everybody" needs to read a file.
const OTHER_READ: u32 = 0o004;
/// The permission bits that "everybody" needs to list and enter a directory.
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

    /// The path of the root, for those who mount.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Opens `relative` without following any link. A trailing link gives `ELOOP`, except with `O_PATH`.
    pub(super) fn open(&self, relative: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        let flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        rustix::fs::openat2(&self.root, relative, flags, Mode::empty(), resolve)
    }

    /// What is at `relative` itself; a link is not followed. None when there is nothing.
    pub(super) fn stat(&self, relative: &Path) -> Option<Stat> {
        let fd = self.open(relative, OFlags::PATH).ok()?;
        rustix::fs::statat(fd, "", AtFlags::EMPTY_PATH).ok()
    }

    /// Where `relative` ends when links are followed as they would be inside, and what is there.
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

    /// The contents of a regular file that everybody may read, up to `limit` bytes. None when it is not such a file.
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

    /// As [`Self::read_public`], as text; bytes that are no UTF-8 are replaced.
    pub(super) fn read_text(&self, relative: &str) -> Option<String> {
        let contents = self.read_public(Path::new(relative), TEXT_LIMIT)?;
        Some(String::from_utf8_lossy(&contents).into_owned())
    }

    /// A small text file of whoever runs us, also when nobody else may read it.
    pub(super) fn read_own(&self, relative: &Path) -> Option<String> {
        let fd = self.open(relative, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY).ok()?;
        let stat = rustix::fs::fstat(&fd).ok()?;
        let is_small =
            kind(&stat) == FileType::RegularFile && u64::try_from(stat.st_size).is_ok_and(|s| s < TEXT_LIMIT);
        let mut contents = Vec::new();
        File::from(fd).take(TEXT_LIMIT).read_to_end(&mut contents).ok().filter(|_| is_small)?;
        Some(String::from_utf8_lossy(&contents).into_owned())
    }

    /// Opens a regular file that everybody may read. What was opened is what was checked.
    pub(super) fn open_public(&self, relative: &Path) -> Option<(File, Stat)> {
        // Non-blocking: a fifo put in the place of a file must not hang us.
        let fd = self.open(relative, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY).ok()?;
        let stat = rustix::fs::fstat(&fd).ok()?;
        (kind(&stat) == FileType::RegularFile && is_public(&stat)).then(|| (File::from(fd), stat))
    }

    /// The names in a directory, sorted; empty when it is none.
    pub(super) fn list(&self, relative: &Path) -> Vec<OsString> {
        let Ok(fd) = self.open(relative, OFlags::RDONLY | OFlags::DIRECTORY) else { return Vec::new() };
        list_fd(fd.as_fd())
    }
}

/// Settings files are small; what is larger is none.
const TEXT_LIMIT: u64 = 16 << 20;

/// The names in an opened directory, sorted.
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

/// What sort of file it is.
pub(super) fn kind(stat: &Stat) -> FileType {
    FileType::from_raw_mode(stat.st_mode)
}

/// Whether everybody on the host may read it. Root inside a sandbox owns what it sees, so what the host hides from
/// its own users must not be there at all.
pub(super) fn is_public(stat: &Stat) -> bool {
    let needed = if kind(stat) == FileType::Directory { OTHER_READ_ENTER } else { OTHER_READ };
    kind(stat) == FileType::Symlink || stat.st_mode & needed == needed
}
