//! Opens and reads directories by descriptor, never through a symbolic link and never into another mount.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Neither through a symbolic link nor into another mount.
pub(super) const STAY_BELOW: ResolveFlags =
    ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS).union(ResolveFlags::NO_XDEV);

/// One name in a directory, and whether it may itself be a directory.
pub(super) struct Entry {
    pub(super) name: CString,
    pub(super) may_be_directory: bool,
}

/// Opens a directory at a trusted path of our own.
pub(super) fn open_path(path: &std::path::Path) -> io::Result<OwnedFd> {
    Ok(rustix::fs::openat(CWD, path, DIRECTORY, Mode::empty())?)
}

/// Opens the directory `name` directly below `parent`. Fails with ELOOP or ENOTDIR if it is something else, and with
/// EXDEV if another file system is mounted there.
pub(super) fn open_below<P: rustix::path::Arg + Copy>(parent: impl AsFd, name: P) -> Result<OwnedFd, Errno> {
    match open_as_is(&parent, name) {
        Err(Errno::ACCESS) => {
            make_readable(&parent, name, STAY_BELOW)?;
            open_as_is(&parent, name)
        }
        other => other,
    }
}

/// As [`open_below`], but never changes the directory to be able to read it.
pub(super) fn open_as_is<P: rustix::path::Arg>(parent: impl AsFd, name: P) -> Result<OwnedFd, Errno> {
    rustix::fs::openat2(&parent, name, DIRECTORY, Mode::empty(), STAY_BELOW)
}

/// A directory with mode 0000 cannot be read even by its owner without CAP_DAC_OVERRIDE. The mode is changed through a
/// descriptor of the directory itself, because chmod by name would follow a symbolic link.
fn make_readable<P: rustix::path::Arg + Copy>(parent: impl AsFd, name: P, flags: ResolveFlags) -> Result<(), Errno> {
    use std::os::fd::AsRawFd;
    let only_path = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let directory = rustix::fs::openat2(&parent, name, only_path, Mode::empty(), flags)?;
    let through_proc = format!("/proc/self/fd/{}", directory.as_raw_fd());
    rustix::fs::chmodat(CWD, through_proc, Mode::RWXU, AtFlags::empty())
}

/// Creates the directory, accessible only to root, if it does not exist.
pub(super) fn ensure_below<P: rustix::path::Arg + Copy>(parent: impl AsFd, name: P) -> io::Result<OwnedFd> {
    match rustix::fs::mkdirat(&parent, name, Mode::RWXU) {
        Ok(()) | Err(Errno::EXIST) => Ok(open_below(parent, name)?),
        Err(errno) => Err(errno.into()),
    }
}

/// The names in a directory, without `.` and `..`, but at most `most` of them.
pub(super) fn entries(directory: impl AsFd, most: usize) -> Result<Vec<Entry>, Errno> {
    let mut entries = Vec::new();
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        if !matches!(entry.file_name().to_bytes(), b"." | b"..") {
            let may_be_directory = matches!(entry.file_type(), FileType::Directory | FileType::Unknown);
            entries.push(Entry { name: entry.file_name().to_owned(), may_be_directory });
        }
        if entries.len() >= most {
            break;
        }
    }
    Ok(entries)
}
