//! Scans the host's `/usr` once, for what must be hidden from sandboxes and for facts about the host.

use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat};

use super::error::BaseError;
use super::host::{Host, is_public, kind};
use super::layer::LAST_ID;
use super::manifest::MaskReason;
use super::mounts::mounts_below;

/// The result. Paths are relative to `/usr`.
#[derive(Debug, Default)]
pub(super) struct UsrScan {
    /// Paths to hide, in the order of the walk.
    pub(super) masked: Vec<(PathBuf, MaskReason)>,
    pub(super) set_id_programs: usize,
    pub(super) capability_programs: usize,
    pub(super) foreign_owners: usize,
    pub(super) mounts: Vec<PathBuf>,
    pub(super) entries: usize,
}

/// What to do with file systems that the host mounts below `/usr`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mounts {
    /// They are not part of a clone of `/usr`, and nothing has scanned what they cover.
    Hide,
    /// A copy includes them.
    Enter,
}

/// Walks all of `/usr` except `/usr/local`, which sandboxes do not see.
pub(super) fn scan_usr(host: &Host, mounts: Mounts) -> Result<UsrScan, BaseError> {
    let usr = host.path().join("usr");
    let failed = |source| BaseError::Host { path: usr.clone(), source };
    let fd = host.open(Path::new("usr"), OFlags::RDONLY | OFlags::DIRECTORY).map_err(failed)?;
    let mounts = match mounts {
        // Use the mount table and not device numbers, which differ between the files of one overlay or btrfs.
        Mounts::Hide => mounts_below(&usr)?,
        Mounts::Enter => Vec::new(),
    };
    let mut walk = Walk { usr, found: UsrScan { mounts, ..UsrScan::default() } };
    walk.found.mounts.retain(|mount| !mount.starts_with("local"));
    walk.dir(fd, Path::new(""));
    Ok(walk.found)
}

struct Walk {
    usr: PathBuf,
    found: UsrScan,
}

impl Walk {
    fn dir(&mut self, fd: OwnedFd, relative: &Path) {
        let Ok(entries) = Dir::read_from(&fd) else {
            // Hide what cannot be read, because it cannot be checked.
            self.found.masked.push((relative.to_owned(), MaskReason::NotPublic));
            return;
        };
        for entry in entries.filter_map(Result::ok) {
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            let skip = name == "." || name == ".." || (relative.as_os_str().is_empty() && name == "local");
            // A link is always public and gives no more access than its target.
            if !skip && entry.file_type() != FileType::Symlink {
                self.entry(&fd, name, &relative.join(name));
            }
        }
    }

    fn entry(&mut self, parent: &OwnedFd, name: &OsStr, relative: &Path) {
        let Ok(stat) = rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW) else { return };
        self.found.entries += 1;
        if let Some(why) = self.mask_reason(relative, &stat) {
            self.found.masked.push((relative.to_owned(), why));
            return;
        }
        self.count(relative, &stat);
        if kind(&stat) == FileType::Directory {
            match open_dir(parent, name) {
                Some(fd) => self.dir(fd, relative),
                None => self.found.masked.push((relative.to_owned(), MaskReason::NotPublic)),
            }
        }
    }

    fn mask_reason(&self, relative: &Path, stat: &Stat) -> Option<MaskReason> {
        match kind(stat) {
            _ if self.found.mounts.iter().any(|mount| mount == relative) => Some(MaskReason::Mount),
            FileType::Symlink => None,
            FileType::RegularFile | FileType::Directory if !is_public(stat) => Some(MaskReason::NotPublic),
            FileType::RegularFile if is_pip_guard(relative) => Some(MaskReason::PipGuard),
            FileType::RegularFile | FileType::Directory => None,
            _ => Some(MaskReason::Special),
        }
    }

    fn count(&mut self, relative: &Path, stat: &Stat) {
        self.found.foreign_owners += usize::from(stat.st_uid > LAST_ID || stat.st_gid > LAST_ID);
        if kind(stat) != FileType::RegularFile || stat.st_mode & 0o111 == 0 {
            return;
        }
        self.found.set_id_programs += usize::from(stat.st_mode & 0o6000 != 0);
        let mut capability = [0_u8; 64];
        let found = rustix::fs::lgetxattr(self.usr.join(relative), "security.capability", &mut capability);
        self.found.capability_programs += usize::from(found.is_ok());
    }
}

/// Whether this is `lib/python3.x/EXTERNALLY-MANAGED`, which makes pip refuse to install (PEP 668). A sandbox is
/// disposable, so there is nothing to protect.
fn is_pip_guard(relative: &Path) -> bool {
    relative.file_name() == Some(OsStr::new("EXTERNALLY-MANAGED")) && relative.components().count() == 3
}

fn open_dir(parent: impl AsFd, name: &OsStr) -> Option<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(parent, name, flags, Mode::empty()).ok()
}
