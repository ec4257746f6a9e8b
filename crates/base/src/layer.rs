//! Writes a layer: files with the owners, modes and overlay marks that the sandbox sees. Links are never followed,
//! because a layer is full of links that would lead out to the host.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, FileType, Gid, Mode, OFlags, ResolveFlags, Stat, Timespec, Timestamps, UTIME_OMIT, Uid, XattrFlags,
};
use rustix::io::Errno;

use super::error::BaseError;
use super::host::kind;

/// The highest id in a sandbox.
pub(super) const LAST_ID: u32 = 65_535;

/// Owner, mode and modification time of a file in a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Meta {
    pub(super) mode: u32,
    pub(super) uid: u32,
    pub(super) gid: u32,
    /// Seconds and nanoseconds. `None` leaves the time of writing.
    pub(super) modified: Option<(i64, i64)>,
}

impl Meta {
    pub(super) const fn root(mode: u32) -> Self {
        Self { mode, uid: 0, gid: 0, modified: None }
    }

    pub(super) const fn owned(mode: u32, uid: u32, gid: u32) -> Self {
        Self { mode, uid, gid, modified: None }
    }

    /// As on the host. Ids that do not exist in a sandbox become root's.
    #[expect(clippy::unnecessary_cast, reason = "the width of the time fields differs between architectures")]
    pub(super) fn of_host(stat: &Stat) -> Self {
        let inside = |id: u32| if id <= LAST_ID { id } else { 0 };
        Self {
            mode: stat.st_mode & 0o7777,
            uid: inside(stat.st_uid),
            gid: inside(stat.st_gid),
            modified: Some((stat.st_mtime as i64, stat.st_mtime_nsec as i64)),
        }
    }

    pub(super) const fn with_mode(self, mode: u32) -> Self {
        Self { mode, ..self }
    }
}

/// A layer being written.
#[derive(Debug)]
pub(super) struct Layer {
    root: OwnedFd,
    path: PathBuf,
}

type Written = Result<(), BaseError>;

impl Layer {
    /// Creates the directory of a new layer.
    pub(super) fn create(path: &Path, meta: Meta) -> Result<Self, BaseError> {
        let failed = |source| BaseError::Layer { path: path.to_owned(), source };
        rustix::fs::mkdir(path, Mode::RWXU).map_err(failed)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let root = rustix::fs::open(path, flags, Mode::empty()).map_err(failed)?;
        set_meta(&root, meta).map_err(failed)?;
        Ok(Self { root, path: path.to_owned() })
    }

    /// Creates a directory. Missing parents belong to root, with mode 0755. An existing directory gets the new owner
    /// and mode. Anything else at that path is replaced.
    pub(super) fn dir(&self, relative: &str, meta: Meta) -> Written {
        self.dir_at(Path::new(relative), meta)
    }

    pub(super) fn dir_at(&self, relative: &Path, meta: Meta) -> Written {
        let fd = self.ensure_dir(relative)?;
        set_meta(&fd, meta).map_err(|source| self.failed(relative, source))
    }

    pub(super) fn file(&self, relative: &str, contents: impl AsRef<[u8]>, meta: Meta) -> Written {
        self.file_at(Path::new(relative), contents.as_ref(), meta)
    }

    /// Writes a file, and replaces what was there.
    pub(super) fn file_at(&self, relative: &Path, contents: &[u8], meta: Meta) -> Written {
        let fd = self.create_file(relative)?;
        let mut file = File::from(fd);
        file.write_all(contents)
            .map_err(|error| self.failed(relative, Errno::from_io_error(&error).unwrap_or(Errno::IO)))?;
        set_meta(&file, meta).map_err(|source| self.failed(relative, source))
    }

    /// Creates an empty file. The caller fills it and then calls [`Self::finish_file`].
    pub(super) fn create_file(&self, relative: &Path) -> Result<OwnedFd, BaseError> {
        let (parent, name) = self.make_room(relative)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        rustix::fs::openat(parent, name, flags, Mode::RUSR | Mode::WUSR).map_err(|source| self.failed(relative, source))
    }

    /// Sets the final owner, mode and modification time of a file.
    pub(super) fn finish_file(&self, relative: &Path, file: impl AsFd, meta: Meta) -> Written {
        set_meta(file, meta).map_err(|source| self.failed(relative, source))
    }

    pub(super) fn symlink(&self, relative: &str, target: &str) -> Written {
        self.symlink_at(Path::new(relative), OsStr::new(target), Meta::root(0o777))
    }

    pub(super) fn symlink_at(&self, relative: &Path, target: &OsStr, meta: Meta) -> Written {
        let (parent, name) = self.make_room(relative)?;
        let failed = |source| self.failed(relative, source);
        rustix::fs::symlinkat(target, &parent, name).map_err(failed)?;
        let (uid, gid) = (Uid::from_raw(meta.uid), Gid::from_raw(meta.gid));
        rustix::fs::chownat(&parent, name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW).map_err(failed)
    }

    /// Adds a second name for a file in the layer.
    pub(super) fn hard_link(&self, existing: &Path, relative: &Path) -> Written {
        let (parent, name) = self.make_room(relative)?;
        let failed = |source| self.failed(relative, source);
        let (other, other_name) = split(existing).ok_or(Errno::INVAL).map_err(failed)?;
        let other = self.open_dir(other).map_err(failed)?;
        rustix::fs::linkat(other, other_name, parent, name, AtFlags::empty()).map_err(failed)
    }

    /// Hides the entry of this name in the layer below.
    pub(super) fn whiteout(&self, relative: &Path) -> Written {
        let (parent, name) = self.make_room(relative)?;
        rustix::fs::mknodat(parent, name, FileType::CharacterDevice, Mode::empty(), 0)
            .map_err(|source| self.failed(relative, source))
    }

    /// Hides the contents of this directory in the layer below.
    pub(super) fn opaque(&self, relative: &str) -> Written {
        let relative = Path::new(relative);
        let fd = self.ensure_dir(relative)?;
        rustix::fs::fsetxattr(fd, "trusted.overlay.opaque", b"y", XattrFlags::empty())
            .map_err(|source| self.failed(relative, source))
    }

    /// Takes a file out again. Nothing happens if there is none.
    pub(super) fn remove(&self, relative: &Path) -> Written {
        self.make_room(relative).map(drop)
    }

    pub(super) fn has_directory(&self, relative: &Path) -> bool {
        self.stat(relative).is_some_and(|found| FileType::from_raw_mode(found.st_mode).is_dir())
    }

    /// The metadata of this path, without following links.
    pub(super) fn stat(&self, relative: &Path) -> Option<Stat> {
        let (parent, name) = split(relative)?;
        let parent = self.open_dir(parent).ok()?;
        rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW).ok()
    }

    /// Writes everything to disk. Without this, the rename that follows could survive a crash that the contents do not.
    pub(super) fn sync(&self) -> Written {
        rustix::fs::syncfs(&self.root).map_err(|source| self.failed(Path::new(""), source))
    }

    /// Opens the directory above `relative` and removes what has that name.
    fn make_room<'p>(&self, relative: &'p Path) -> Result<(OwnedFd, &'p OsStr), BaseError> {
        let (parent, name) = split(relative).ok_or(Errno::INVAL).map_err(|source| self.failed(relative, source))?;
        let parent = self.ensure_dir(parent)?;
        match rustix::fs::unlinkat(&parent, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok((parent, name)),
            Err(source) => Err(self.failed(relative, source)),
        }
    }

    fn ensure_dir(&self, relative: &Path) -> Result<OwnedFd, BaseError> {
        match self.open_dir(relative) {
            Ok(fd) => return Ok(fd),
            Err(Errno::NOENT | Errno::LOOP | Errno::NOTDIR) => {}
            Err(source) => return Err(self.failed(relative, source)),
        }
        let (parent, name) = self.make_room(relative)?;
        let failed = |source| self.failed(relative, source);
        rustix::fs::mkdirat(&parent, name, Mode::RWXU).map_err(failed)?;
        let fd = self.open_dir(relative).map_err(failed)?;
        set_meta(&fd, Meta::root(0o755)).map_err(failed)?;
        Ok(fd)
    }

    fn open_dir(&self, relative: &Path) -> Result<OwnedFd, Errno> {
        let relative = if relative.as_os_str().is_empty() { Path::new(".") } else { relative };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        rustix::fs::openat2(&self.root, relative, flags, Mode::empty(), resolve)
    }

    fn failed(&self, relative: &Path, source: Errno) -> BaseError {
        BaseError::Layer { path: self.path.join(relative), source }
    }
}

pub(super) fn is_dir(stat: &Stat) -> bool {
    kind(stat) == FileType::Directory
}

fn split(relative: &Path) -> Option<(&Path, &OsStr)> {
    Some((relative.parent()?, relative.file_name()?))
}

/// Sets the owner first, because a change of owner clears set-uid bits.
fn set_meta(fd: impl AsFd, meta: Meta) -> Result<(), Errno> {
    rustix::fs::fchown(&fd, Some(Uid::from_raw(meta.uid)), Some(Gid::from_raw(meta.gid)))?;
    rustix::fs::fchmod(&fd, Mode::from_raw_mode(meta.mode))?;
    let Some((seconds, nanoseconds)) = meta.modified else { return Ok(()) };
    let last_access = Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT };
    let last_modification = Timespec { tv_sec: seconds, tv_nsec: nanoseconds };
    rustix::fs::futimens(fd, &Timestamps { last_access, last_modification })
}
