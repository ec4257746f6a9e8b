//! A file tree seen from outside: the root of a sandbox, or a directory of this machine.
//!
//! Nothing leads out of it: the kernel resolves every path as if the tree's root were `/`. In a sandbox, only the files
//! of its own root count, not what is mounted into it (`/proc`, `/dev`, `/sys`).

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use isopod_image::unpack::{Quota, copy_contents};
use isopod_isolation::sys::cred::set_file_ids;
use rustix::fs::{
    AtFlags, CWD, FileType, Gid, Mode, OFlags, ResolveFlags, Stat, Timespec, Timestamps, Uid, chownat, fchmod, fchown,
    fstat, fstatfs, mkdirat, openat, openat2, symlinkat, unlinkat,
};
use rustix::io::Errno;

use crate::boot::ProcessIdentity;

const OVERLAY_MAGIC: i64 = 0x794c_7630;

/// An owner in ids of the sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FileOwner {
    pub(super) uid: u32,
    pub(super) gid: u32,
}

impl FileOwner {
    pub(super) const ROOT: Self = Self { uid: 0, gid: 0 };
}

#[derive(Debug)]
pub(super) struct View {
    root: OwnedFd,
    /// The first host id of the sandbox, if it is the root of one.
    first_id: Option<u32>,
}

impl View {
    /// The root of a running sandbox.
    pub(super) fn of_sandbox(init: &ProcessIdentity, first_id: u32) -> io::Result<Self> {
        let gone = || io::Error::from(io::ErrorKind::NotFound);
        let held = init.open().ok_or_else(gone)?;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = openat(CWD, format!("/proc/{}/root", init.pid), flags, Mode::empty())?;
        // The pid may have been reused in between.
        init.open().ok_or_else(gone)?;
        drop(held);
        Ok(Self { root, first_id: Some(first_id) })
    }

    /// A directory of this machine.
    pub(super) fn of_directory(path: &Path) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Self { root: openat(CWD, path, flags, Mode::empty())?, first_id: None })
    }

    pub(super) fn try_clone(&self) -> io::Result<Self> {
        Ok(Self { root: self.root.try_clone()?, first_id: self.first_id })
    }

    pub(super) fn open(&self, path: &Path, flags: OFlags) -> io::Result<OwnedFd> {
        let path = path.strip_prefix("/").unwrap_or(path);
        let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
        let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
        // A terminal of the sandbox must not become ours. The kernel rejects the flag together with `O_PATH`.
        let no_terminal = if flags.contains(OFlags::PATH) { OFlags::empty() } else { OFlags::NOCTTY };
        Ok(openat2(&self.root, path, flags | no_terminal | OFlags::CLOEXEC, Mode::empty(), resolve)?)
    }

    /// The metadata of a path, following links.
    pub(super) fn stat(&self, path: &Path) -> io::Result<Stat> {
        Ok(fstat(self.open(path, OFlags::PATH)?)?)
    }

    pub(super) fn is_directory(&self, path: &Path) -> bool {
        self.stat(path).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Directory)
    }

    pub(super) fn exists(&self, path: &str) -> bool {
        self.stat(Path::new(path)).is_ok()
    }

    /// The text of a small file. Empty if it does not exist.
    pub(super) fn read_small(&self, path: &str) -> String {
        const MAX_BYTES: u64 = 4 << 20;
        // Non-blocking, so that a FIFO cannot hang us.
        let Ok(file) = self.open(Path::new(path), OFlags::RDONLY | OFlags::NONBLOCK) else { return String::new() };
        let mut bytes = Vec::new();
        let is_regular = fstat(&file).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile);
        let is_own = is_regular && self.is_own(&file).unwrap_or(false);
        match File::from(file).take(MAX_BYTES).read_to_end(&mut bytes) {
            Ok(_) if is_own => String::from_utf8_lossy(&bytes).into_owned(),
            _ => String::new(),
        }
    }

    /// Whether a file belongs to the tree itself and not to something mounted into it.
    pub(super) fn is_own(&self, file: impl AsFd) -> io::Result<bool> {
        match self.first_id {
            Some(_) => Ok(fstatfs(file)?.f_type as i64 == OVERLAY_MAGIC),
            None => Ok(true),
        }
    }

    /// Returns a writer, which only the current thread may use.
    pub(super) fn writer(&self) -> io::Result<Writer<'_>> {
        let first_id = self.first_id.unwrap_or(0);
        set_file_ids(first_id, first_id)?;
        Ok(Writer { view: self, first_id, last: None, _not_send: std::marker::PhantomData })
    }
}

/// Changes a tree as its own root user would.
#[derive(Debug)]
pub(super) struct Writer<'a> {
    view: &'a View,
    first_id: u32,
    /// The directory that was last written to.
    last: Option<(PathBuf, OwnedFd)>,
    /// File system ids belong to a thread.
    _not_send: std::marker::PhantomData<*const ()>,
}

impl Drop for Writer<'_> {
    fn drop(&mut self) {
        // Back to the ids of all threads of this process. Changing them worked, so this does too.
        let _ = set_file_ids(0, 0);
    }
}

impl Writer<'_> {
    /// Opens a directory. Creates it and its parents if they are missing.
    pub(super) fn ensure_directory(&mut self, path: &Path, owner: FileOwner, mode: u32) -> io::Result<OwnedFd> {
        let flags = OFlags::PATH | OFlags::DIRECTORY;
        match self.view.open(path, flags) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            other => return other,
        }
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(io::ErrorKind::NotFound.into());
        };
        let parent = self.ensure_directory(parent, owner, 0o755)?;
        self.check_own(&parent)?;
        mkdirat(&parent, name, Mode::RWXU)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let directory = openat(&parent, name, flags, Mode::empty())?;
        self.finish(&directory, owner, mode)?;
        Ok(directory)
    }

    /// Writes a file. Replaces what had its name, unless that is a directory.
    pub(super) fn file(
        &mut self,
        path: &Path,
        content: &mut dyn Read,
        owner: FileOwner,
        stat: FileStat,
    ) -> io::Result<u64> {
        self.file_of(path, owner, stat, |mut file| io::copy(content, &mut file))
    }

    /// Copies a file from an untrusted source.
    pub(super) fn copy_of(
        &mut self,
        path: &Path,
        content: &File,
        owner: FileOwner,
        stat: FileStat,
        quota: &Quota,
    ) -> io::Result<u64> {
        self.file_of(path, owner, stat, |file| copy_contents(content, file, quota))
    }

    fn file_of(
        &mut self,
        path: &Path,
        owner: FileOwner,
        stat: FileStat,
        fill: impl FnOnce(&File) -> io::Result<u64>,
    ) -> io::Result<u64> {
        let (parent, name) = self.free_place(path, owner)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = File::from(openat(&parent, name, flags, Mode::RUSR | Mode::WUSR)?);
        let bytes = fill(&file)?;
        self.finish(&file, owner, stat.mode)?;
        if let Some(seconds) = stat.modified {
            let time = Timespec { tv_sec: seconds, tv_nsec: 0 };
            rustix::fs::futimens(&file, &Timestamps { last_access: time, last_modification: time })?;
        }
        Ok(bytes)
    }

    /// Creates a symbolic link. Replaces what had its name, unless that is a directory.
    pub(super) fn symlink(&mut self, path: &Path, target: &std::ffi::OsStr, owner: FileOwner) -> io::Result<()> {
        let (parent, name) = self.free_place(path, owner)?;
        symlinkat(target, &parent, name)?;
        let (uid, gid) = self.ids(owner);
        Ok(chownat(&parent, name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)?)
    }

    fn free_place<'p>(&mut self, path: &'p Path, owner: FileOwner) -> io::Result<(OwnedFd, &'p std::ffi::OsStr)> {
        let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
        let parent = self.parent(path.parent().unwrap_or(Path::new("/")), owner)?;
        match unlinkat(&parent, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok((parent, name)),
            Err(error) => Err(error.into()),
        }
    }

    fn parent(&mut self, path: &Path, owner: FileOwner) -> io::Result<OwnedFd> {
        if let Some((last, directory)) = &self.last
            && last == path
        {
            return directory.try_clone();
        }
        let directory = self.ensure_directory(path, owner, 0o755)?;
        self.check_own(&directory)?;
        self.last = Some((path.to_owned(), directory.try_clone()?));
        Ok(directory)
    }

    /// Fails for files that are mounted into a sandbox. The host's root must not write to those: they may belong to the
    /// kernel.
    fn check_own(&self, file: impl AsFd) -> io::Result<()> {
        match self.view.is_own(file)? {
            true => Ok(()),
            false => Err(io::Error::new(io::ErrorKind::PermissionDenied, "it is not part of the template")),
        }
    }

    fn finish(&self, file: impl AsFd, owner: FileOwner, mode: u32) -> io::Result<()> {
        let (uid, gid) = self.ids(owner);
        fchown(&file, Some(uid), Some(gid))?;
        Ok(fchmod(&file, Mode::from_raw_mode(mode & 0o7777))?)
    }

    fn ids(&self, owner: FileOwner) -> (Uid, Gid) {
        (Uid::from_raw(self.first_id + owner.uid.min(65_535)), Gid::from_raw(self.first_id + owner.gid.min(65_535)))
    }
}

/// Mode and modification time of a file that is written.
#[derive(Clone, Copy, Debug)]
pub(super) struct FileStat {
    pub(super) mode: u32,
    pub(super) modified: Option<i64>,
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_small_file_is_a_regular_one_and_a_large_one_is_cut() {
        let scratch = tempfile::tempdir().unwrap();
        let at = |name: &str| scratch.path().join(name);
        std::fs::write(at("passwd"), "root:x:0:0\n").unwrap();
        std::fs::write(at("large"), vec![b'x'; 5 << 20]).unwrap();
        std::fs::create_dir(at("directory")).unwrap();
        for name in ["fifo", "full"] {
            rustix::fs::mknodat(CWD, at(name), FileType::Fifo, Mode::RWXU, 0).unwrap();
        }
        // A FIFO with data and an end: the data stays in the kernel while the FIFO is open somewhere.
        let held = openat(CWD, at("full"), OFlags::RDONLY | OFlags::NONBLOCK, Mode::empty()).unwrap();
        std::fs::OpenOptions::new().write(true).open(at("full")).unwrap().write_all(b"root:x:0:0\n").unwrap();
        let view = View::of_directory(scratch.path()).unwrap();
        let (done, read) = mpsc::channel();
        // Without `O_NONBLOCK`, opening a FIFO waits for a writer.
        std::thread::spawn(move || {
            for name in ["passwd", "large", "directory", "fifo", "full", "missing"] {
                done.send((name, view.read_small(name))).unwrap();
            }
        });
        for (name, length) in
            [("passwd", 11), ("large", 4 << 20), ("directory", 0), ("fifo", 0), ("full", 0), ("missing", 0)]
        {
            let (read_name, text) = read.recv_timeout(Duration::from_secs(20)).expect("it does not wait");
            assert_eq!((read_name, text.len()), (name, length));
        }
        drop(held);
    }
}
