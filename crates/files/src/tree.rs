//! A directory tree that others write to as well, including code in sandboxes. Operations never leave it: the kernel
//! resolves every path below the root (`openat2`), and changes use the descriptor of the directory that contains the
//! entry.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use isopod_store::secrets::new_name;
use rustix::fs::{AtFlags, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use crate::path::{InnerPath, UNFINISHED};

/// How symbolic links in a path are treated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Links {
    /// Not followed. The path counts as missing.
    Refused,
    /// Followed as if the root were `/`.
    Inside,
}

/// A directory and everything below it.
#[derive(Debug)]
pub struct Tree {
    root: OwnedFd,
    links: Links,
}

/// The mode of new entries. Everybody who can reach the workspace may write to it, also inside a sandbox.
pub(crate) const FILE_MODE: u32 = 0o666;
pub(crate) const DIR_MODE: u32 = 0o777;

/// A concurrent rename can leave the kernel unsure whether a path stays inside. It then returns `EAGAIN`.
const TRIES: usize = 64;

impl Tree {
    pub(crate) fn open(root: &Path, links: Links) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Self { root: rustix::fs::open(root, flags, Mode::empty())?, links })
    }

    /// Returns a part of the tree as a tree of its own.
    pub(crate) fn below(&self, path: &InnerPath) -> io::Result<Self> {
        Ok(Self { root: self.open_dir(path)?, links: self.links })
    }

    /// Creates the directory and its missing parents.
    pub(crate) fn ensure_dir(&self, path: &InnerPath) -> io::Result<OwnedFd> {
        let mut made = InnerPath::root();
        let mut dir = self.open_dir(&made)?;
        for part in path.parts() {
            match make_dir_in(dir.as_fd(), part, DIR_MODE) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
            made = made.join(part);
            dir = self.open_dir(&made)?;
        }
        Ok(dir)
    }

    /// Creates one directory. Its parent must exist.
    pub(crate) fn make_dir(&self, path: &InnerPath, mode: u32) -> io::Result<()> {
        let (parent, name) = self.parent_of(path)?;
        make_dir_in(parent.as_fd(), &name, mode)
    }

    /// Opens a regular file for reading.
    pub(crate) fn open_file(&self, path: &InnerPath) -> io::Result<File> {
        // Nonblocking, because a pipe at this path must not block us.
        let fd = self.open_at(path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY)?;
        let file = File::from(fd);
        match file.metadata()? {
            found if found.is_file() => Ok(file),
            found if found.is_dir() => Err(Errno::ISDIR.into()),
            _ => Err(Errno::INVAL.into()),
        }
    }

    /// Creates a file that appears under its name when it is complete. Its directory must exist.
    pub(crate) fn begin_file(&self, path: &InnerPath) -> io::Result<(NewFile, File)> {
        let (parent, name) = self.parent_of(path)?;
        let unfinished = format!("{UNFINISHED}{}", new_name());
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = File::from(rustix::fs::openat(&parent, unfinished.as_str(), flags, Mode::from_raw_mode(FILE_MODE))?);
        let new = NewFile { parent, unfinished: Some(unfinished), name };
        rustix::fs::fchmod(&file, Mode::from_raw_mode(FILE_MODE))?;
        Ok((new, file))
    }

    /// Returns the status of an entry. Does not follow a link at the end of the path.
    pub(crate) fn stat(&self, path: &InnerPath) -> io::Result<rustix::fs::Stat> {
        if path.is_root() {
            return Ok(rustix::fs::fstat(&self.root)?);
        }
        let (parent, name) = self.parent_of(path)?;
        Ok(rustix::fs::statat(&parent, name.as_str(), AtFlags::SYMLINK_NOFOLLOW)?)
    }

    pub(crate) fn read_link(&self, path: &InnerPath) -> io::Result<String> {
        let (parent, name) = self.parent_of(path)?;
        Ok(rustix::fs::readlinkat(&parent, name.as_str(), Vec::new())?.to_string_lossy().into_owned())
    }

    /// Changes the owner of an entry. Does not follow a link out of the tree.
    pub(crate) fn set_owner(&self, path: &InnerPath, uid: Option<u32>, gid: Option<u32>) -> io::Result<()> {
        let (uid, gid) = (uid.map(rustix::fs::Uid::from_raw), gid.map(rustix::fs::Gid::from_raw));
        let fd = self.open_at(path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY)?;
        Ok(rustix::fs::fchown(&fd, uid, gid)?)
    }

    pub(crate) fn set_mode(&self, path: &InnerPath, mode: u32) -> io::Result<()> {
        let fd = self.open_at(path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY)?;
        Ok(rustix::fs::fchmod(&fd, Mode::from_raw_mode(mode))?)
    }

    /// Removes an entry that is not a directory.
    pub(crate) fn remove_file(&self, path: &InnerPath) -> io::Result<()> {
        let (parent, name) = self.parent_of(path)?;
        Ok(rustix::fs::unlinkat(&parent, name.as_str(), AtFlags::empty())?)
    }

    /// Removes an empty directory.
    pub(crate) fn remove_dir(&self, path: &InnerPath) -> io::Result<()> {
        let (parent, name) = self.parent_of(path)?;
        Ok(rustix::fs::unlinkat(&parent, name.as_str(), AtFlags::REMOVEDIR)?)
    }

    pub(crate) fn rename(&self, from: &InnerPath, to: &InnerPath) -> io::Result<()> {
        let ((from_dir, from_name), (to_dir, to_name)) = (self.parent_of(from)?, self.parent_of(to)?);
        Ok(rustix::fs::renameat(&from_dir, from_name.as_str(), &to_dir, to_name.as_str())?)
    }

    /// Opens a directory for reading.
    pub(crate) fn open_dir(&self, path: &InnerPath) -> io::Result<OwnedFd> {
        self.open_at(path, OFlags::RDONLY | OFlags::DIRECTORY)
    }

    fn parent_of(&self, path: &InnerPath) -> io::Result<(OwnedFd, String)> {
        let (parent, name) = path.split().ok_or(Errno::BUSY)?;
        Ok((self.open_dir(&parent)?, name.to_owned()))
    }

    fn open_at(&self, path: &InnerPath, flags: OFlags) -> io::Result<OwnedFd> {
        let resolve = match self.links {
            Links::Refused => ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS,
            Links::Inside => ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS,
        };
        let text = if path.is_root() { "." } else { path.as_str() };
        for _ in 0..TRIES {
            match rustix::fs::openat2(&self.root, text, flags | OFlags::CLOEXEC, Mode::empty(), resolve) {
                Err(Errno::AGAIN) => {}
                // Do not reveal where a link leads. For the caller, the path does not exist.
                Err(Errno::LOOP | Errno::XDEV) => return Err(Errno::NOENT.into()),
                result => return Ok(result?),
            }
        }
        Err(Errno::AGAIN.into())
    }
}

fn make_dir_in(parent: BorrowedFd<'_>, name: &str, mode: u32) -> io::Result<()> {
    rustix::fs::mkdirat(parent, name, Mode::from_raw_mode(mode))?;
    // Set the mode again, because the umask of the server is not meant for sandboxes. By descriptor, because code in a
    // sandbox may have replaced the directory with a link.
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match rustix::fs::openat(parent, name, flags, Mode::empty()) {
        Ok(dir) => Ok(rustix::fs::fchmod(&dir, Mode::from_raw_mode(mode))?),
        // Removed or replaced concurrently.
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// A file that is being written. If it is dropped before `finish`, it is removed.
#[derive(Debug)]
pub(crate) struct NewFile {
    parent: OwnedFd,
    /// `None` once the file has its name.
    unfinished: Option<String>,
    name: String,
}

impl NewFile {
    /// Renames the file to its name, replacing an existing file.
    pub(crate) fn finish(mut self) -> io::Result<()> {
        let Some(unfinished) = &self.unfinished else { return Ok(()) };
        rustix::fs::renameat(&self.parent, unfinished.as_str(), &self.parent, self.name.as_str())?;
        self.unfinished = None;
        Ok(())
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        if let Some(unfinished) = &self.unfinished {
            // If this fails, the next cleanup of unfinished files finds it.
            let _ = rustix::fs::unlinkat(&self.parent, unfinished.as_str(), AtFlags::empty());
        }
    }
}
