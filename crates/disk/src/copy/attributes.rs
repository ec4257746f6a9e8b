//! Gives a copy the owner, extended attributes, mode and times of its source.
//!
//! Both are named through `/proc/self/fd`, because calls for extended attributes accept no descriptor that is open by path
//! only. The link leads to the very inode, also if that is a symbolic link.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd, AsRawFd};

use rustix::buffer::spare_capacity;
use rustix::fs::{
    AtFlags, CWD, FileType, Gid, Mode, Stat, Timespec, Timestamps, Uid, XattrFlags, chmodat, chownat, getxattr,
    listxattr, removexattr, setxattr, utimensat,
};
use rustix::io::Errno;

/// The kernel's limit on one extended attribute, and on the names of all.
const MAX_SIZE: usize = 1 << 16;

pub(super) fn path_of(file: impl AsFd) -> String {
    format!("/proc/self/fd/{}", file.as_fd().as_raw_fd())
}

/// Content comes before, because a write removes capabilities. So does a change of the owner, and an ACL changes the mode.
pub(super) fn copy(source: impl AsFd, target: impl AsFd, stat: &Stat) -> io::Result<()> {
    let (owner, group) = (Uid::from_raw(stat.st_uid), Gid::from_raw(stat.st_gid));
    chownat(&target, c"", Some(owner), Some(group), AtFlags::EMPTY_PATH)?;
    copy_xattrs(&path_of(source), &path_of(&target))?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::Symlink {
        chmodat(CWD, path_of(&target), Mode::from_raw_mode(stat.st_mode & 0o7777), AtFlags::empty())?;
    }
    copy_times(target, stat)
}

#[expect(clippy::unnecessary_cast, reason = "the types of the fields depend on the architecture")]
pub(super) fn copy_times(target: impl AsFd, stat: &Stat) -> io::Result<()> {
    let times = Timestamps {
        last_access: Timespec { tv_sec: stat.st_atime as i64, tv_nsec: stat.st_atime_nsec as i64 },
        last_modification: Timespec { tv_sec: stat.st_mtime as i64, tv_nsec: stat.st_mtime_nsec as i64 },
    };
    Ok(utimensat(CWD, path_of(target), &times, AtFlags::empty())?)
}

/// Overlays keep what they know of their layers in `trusted.overlay.*`, so none may be missing. The target may have some
/// that the source hasn't: of an earlier version, or an ACL that its directory passes on.
fn copy_xattrs(source: &str, target: &str) -> io::Result<()> {
    let (wanted, present) = (names(source)?, names(target)?);
    for name in present.iter().filter(|name| !wanted.contains(name)) {
        match removexattr(target, name.as_c_str()) {
            // xfs lists an ACL under two names.
            Ok(()) | Err(Errno::NODATA) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    for name in &wanted {
        if let Some(value) = value(source, name)? {
            setxattr(target, name.as_c_str(), &value, XattrFlags::empty())?;
        }
    }
    Ok(())
}

fn names(path: &str) -> io::Result<Vec<CString>> {
    let mut list = Vec::with_capacity(MAX_SIZE);
    match listxattr(path, spare_capacity(&mut list)) {
        Ok(_) => {}
        Err(Errno::NOTSUP) => return Ok(Vec::new()),
        Err(errno) => return Err(errno.into()),
    }
    let names = list.split_inclusive(|byte| *byte == 0);
    Ok(names.filter_map(|name| CStr::from_bytes_with_nul(name).ok()).map(CStr::to_owned).collect())
}

/// A program may remove it between the list and this.
fn value(path: &str, name: &CStr) -> io::Result<Option<Vec<u8>>> {
    let mut value = Vec::with_capacity(MAX_SIZE);
    match getxattr(path, name, spare_capacity(&mut value)) {
        Ok(_) => Ok(Some(value)),
        Err(Errno::NODATA) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}
