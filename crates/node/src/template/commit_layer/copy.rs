//! Copies one part of a writable layer.
//!
//! Untrusted programs wrote the source, and some may still run. So everything uses descriptors and single names: each
//! directory of the source is opened relative to its parent, and each file is created in an open directory of the copy.
//! The only path that is resolved is that of a hard-linked file in the copy, and there the kernel follows no links.

use std::collections::HashMap;
use std::ffi::CStr;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use isopod_image::unpack::{Quota, copy_contents};
use rustix::fs::{
    AtFlags, CWD, FileType, Gid, Mode, OFlags, RawMode, ResolveFlags, Stat, Timespec, Timestamps, Uid, XattrFlags,
    openat, openat2,
};
use rustix::io::Errno;

use super::CommitError;
use super::stamps::{DIRECTORY, Known, Names, Stamp, Walk};

/// Extended attributes that are copied. Other overlay attributes refer to files that are not in the copy.
const KEPT_TRUSTED: &[&str] = &["trusted.overlay.opaque", "trusted.overlay.redirect"];
const KEPT_PREFIXES: &[&str] = &["user.", "security.capability", "system.posix_acl_"];

/// The limit on memory for the paths of hard-linked files. Links beyond it become separate files.
const MAX_LINKED_BYTES: usize = 32 << 20;
/// The kernel's limit on the length of a path.
const MAX_PATH: usize = 4095;

/// The result of copying one part.
pub(super) struct Copied {
    pub(super) names: Names,
    pub(super) has_changed: bool,
    pub(super) bytes: u64,
}

/// Copies what is not in `before`, and adds whiteouts for what has been removed since.
pub(super) fn copy_tree(
    from: &Path,
    to: &Path,
    left_out: &[&str],
    before: &Names,
    quota: &Quota,
) -> Result<Copied, CommitError> {
    let failed = |path: &Path| {
        let path = path.display().to_string();
        move |error: Errno| CommitError::Copy { path, source: error.into() }
    };
    let source = openat(CWD, from, DIRECTORY, Mode::empty()).map_err(failed(from))?;
    rustix::fs::mkdir(to, Mode::RWXU).map_err(failed(to))?;
    let target = openat(CWD, to, DIRECTORY, Mode::empty()).map_err(failed(to))?;
    let walk = Walk::new(left_out, quota);
    let mut copy = Copy { walk, root: &target, linked: HashMap::new(), linked_bytes: 0, bytes: 0, made: 0 };
    let names = copy.directory(&source, &target, before)?;
    copy.finish(&source, &target).map_err(failed(to))?;
    Ok(Copied { names, has_changed: copy.made > 0, bytes: copy.bytes })
}

struct Copy<'a> {
    walk: Walk<'a>,
    /// The root of the copy.
    root: &'a OwnedFd,
    /// Hard-linked files by their inode in the source.
    linked: HashMap<u64, Linked>,
    linked_bytes: usize,
    bytes: u64,
    /// The number of entries in the copy.
    made: u64,
}

/// The copy of a hard-linked file.
struct Linked {
    path: Box<[u8]>,
    /// Device and inode, to recognise it.
    identity: (u64, u64),
}

impl Copy<'_> {
    fn directory(&mut self, source: &OwnedFd, target: &OwnedFd, before: &Names) -> Result<Names, CommitError> {
        let mut now = Names::default();
        for name in self.walk.names(source)? {
            self.walk.enter(&name)?;
            if !self.walk.is_left_out() {
                let known = self.entry(source, target, &name, before.entries.get(&name))?;
                now.entries.insert(name, known);
            }
            self.walk.leave();
        }
        // Entries of an earlier layer that are gone now. Nothing needs to be hidden below a directory that is gone.
        for name in before.entries.keys().filter(|name| !now.entries.contains_key(*name)) {
            hide(target, name).map_err(|error| self.walk.failed(error))?;
            self.made += 1;
        }
        Ok(now)
    }

    fn entry(
        &mut self,
        source: &OwnedFd,
        target: &OwnedFd,
        name: &CStr,
        before: Option<&Known>,
    ) -> Result<Known, CommitError> {
        let stat = self.walk.stat(source, name)?;
        let stamp = Stamp::of(&stat);
        let is_same = before.is_some_and(|before| before.stamp == stamp);
        let kind = FileType::from_raw_mode(stat.st_mode);
        if kind == FileType::Directory {
            let below = self.subdirectory(source, target, name, stamp, before)?;
            return Ok(Known { stamp, below });
        }
        if !is_same {
            let is_made = match kind {
                FileType::RegularFile => self.file(source, target, name, &stat).map(|()| true)?,
                kind => special(source, target, name, &stat, kind).map_err(|error| self.walk.failed(error))?,
            };
            self.made += u64::from(is_made);
        }
        Ok(Known { stamp, below: Names::default() })
    }

    fn subdirectory(
        &mut self,
        source: &OwnedFd,
        target: &OwnedFd,
        name: &CStr,
        stamp: Stamp,
        before: Option<&Known>,
    ) -> Result<Names, CommitError> {
        let made_before = self.made;
        let parent = target;
        let source = openat(source, name, DIRECTORY, Mode::empty()).map_err(|error| self.walk.failed(error))?;
        rustix::fs::mkdirat(parent, name, Mode::RWXU).map_err(|error| self.walk.failed(error))?;
        let target = openat(parent, name, DIRECTORY, Mode::empty()).map_err(|error| self.walk.failed(error))?;
        let empty = Names::default();
        let below = self.directory(&source, &target, before.map_or(&empty, |before| &before.below))?;
        if before.is_some_and(|before| before.stamp == stamp) && self.made == made_before {
            let dropped = rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR);
            return dropped.map(|()| below).map_err(|error| self.walk.failed(error));
        }
        self.made += 1;
        // Last, because writing into the directory changes its time.
        self.finish(&source, &target).map_err(|error| self.walk.failed(error))?;
        // The layer below already has this directory. Marked opaque again, it would hide the files there.
        if before.is_some_and(|before| before.stamp.inode == stamp.inode) {
            forget_opaque(&target).map_err(|error| self.walk.failed(error))?;
        }
        Ok(below)
    }

    fn file(&mut self, source: &OwnedFd, target: &OwnedFd, name: &CStr, stat: &Stat) -> Result<(), CommitError> {
        let has_more_names = stat.st_nlink > 1;
        if has_more_names && self.link(target, name, stat.st_ino).map_err(|error| self.walk.failed(error))? {
            return Ok(());
        }
        // A process that still runs in the sandbox may replace it with a FIFO, which must not block us.
        let read = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let from = File::from(openat(source, name, read, Mode::empty()).map_err(|error| self.walk.failed(error))?);
        if !from.metadata().is_ok_and(|meta| meta.is_file()) {
            return Err(self.walk.failed(Errno::STALE));
        }
        let write = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let to = openat(target, name, write, Mode::RUSR | Mode::WUSR).map_err(|error| self.walk.failed(error))?;
        let to = File::from(to);
        self.bytes += copy_contents(&from, &to, self.walk.quota).map_err(|error| self.walk.failed_with(error))?;
        self.finish(&from, &to).map_err(|error| self.walk.failed(error))?;
        if has_more_names {
            let meta = to.metadata().map_err(|error| self.walk.failed_with(error))?;
            self.remember(stat.st_ino, (meta.dev(), meta.ino()));
        }
        Ok(())
    }

    /// Adds another name for the copy of a file. Returns false if there is no copy yet.
    fn link(&self, target: &OwnedFd, name: &CStr, inode: u64) -> rustix::io::Result<bool> {
        let Some(linked) = self.linked.get(&inode) else { return Ok(false) };
        // Follow no links: links of the layer would be resolved on the host.
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let first = openat2(self.root, &*linked.path, flags, Mode::empty(), resolve)?;
        let stat = rustix::fs::fstat(&first)?;
        if (stat.st_dev, stat.st_ino) != linked.identity {
            return Err(Errno::STALE);
        }
        rustix::fs::linkat(&first, "", target, name, AtFlags::EMPTY_PATH).map(|()| true)
    }

    fn remember(&mut self, inode: u64, identity: (u64, u64)) {
        let path = self.walk.path();
        if path.len() > MAX_PATH || self.linked_bytes + path.len() > MAX_LINKED_BYTES {
            return;
        }
        self.linked_bytes += path.len();
        self.linked.insert(inode, Linked { path: path.into(), identity });
    }

    /// Copies owner, mode, attributes and times, in an order in which none undoes another.
    fn finish(&self, source: impl AsFd, target: impl AsFd) -> rustix::io::Result<()> {
        let stat = rustix::fs::fstat(&source)?;
        rustix::fs::fchown(&target, Some(Uid::from_raw(stat.st_uid)), Some(Gid::from_raw(stat.st_gid)))?;
        rustix::fs::fchmod(&target, mode(&stat))?;
        copy_marks(&source, &target, self.walk.quota)?;
        rustix::fs::futimens(&target, &times(&stat))
    }
}

/// Creates a whiteout, which hides a file of a lower layer.
fn hide(target: &OwnedFd, name: &CStr) -> rustix::io::Result<()> {
    rustix::fs::mknodat(target, name, FileType::CharacterDevice, Mode::empty(), 0)
}

/// Copies links, FIFOs and whiteouts. Returns false for what is left out: sockets and other devices.
fn special(source: &OwnedFd, target: &OwnedFd, name: &CStr, stat: &Stat, kind: FileType) -> rustix::io::Result<bool> {
    match kind {
        FileType::Symlink => {
            let text = rustix::fs::readlinkat(source, name, Vec::new())?;
            rustix::fs::symlinkat(&text, target, name)?;
            own(target, name, stat)?;
        }
        FileType::CharacterDevice if stat.st_rdev == 0 => hide(target, name)?,
        FileType::Fifo => {
            rustix::fs::mknodat(target, name, FileType::Fifo, mode(stat), 0)?;
            own(target, name, stat)?;
        }
        _ => return Ok(false),
    }
    Ok(true)
}

fn own(target: &OwnedFd, name: &CStr, stat: &Stat) -> rustix::io::Result<()> {
    let (uid, gid) = (Uid::from_raw(stat.st_uid), Gid::from_raw(stat.st_gid));
    rustix::fs::chownat(target, name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)
}

fn forget_opaque(directory: &OwnedFd) -> rustix::io::Result<()> {
    match rustix::fs::fremovexattr(directory, "trusted.overlay.opaque") {
        Err(Errno::NODATA | Errno::NOTSUP) => Ok(()),
        other => other,
    }
}

fn copy_marks(source: impl AsFd, target: impl AsFd, quota: &Quota) -> rustix::io::Result<()> {
    let mut names = vec![0; 64 << 10];
    let length = match rustix::fs::flistxattr(&source, &mut names) {
        Err(Errno::NOTSUP) => return Ok(()),
        other => other?,
    };
    for name in names[..length].split(|byte| *byte == 0).filter_map(|name| std::str::from_utf8(name).ok()) {
        let is_kept = KEPT_TRUSTED.contains(&name) || KEPT_PREFIXES.iter().any(|prefix| name.starts_with(prefix));
        if !is_kept || name.is_empty() {
            continue;
        }
        let mut value = vec![0; 64 << 10];
        let length = rustix::fs::fgetxattr(&source, name, &mut value)?;
        quota.take_bytes(length as u64).map_err(|_| Errno::DQUOT)?;
        rustix::fs::fsetxattr(&target, name, &value[..length], XattrFlags::empty())?;
    }
    Ok(())
}

fn mode(stat: &Stat) -> Mode {
    Mode::from_raw_mode(stat.st_mode as RawMode & 0o7777)
}

fn times(stat: &Stat) -> Timestamps {
    let modified = Timespec { tv_sec: stat.st_mtime, tv_nsec: stat.st_mtime_nsec as i64 };
    Timestamps { last_access: modified, last_modification: modified }
}
