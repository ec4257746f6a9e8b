//! Errors of disk operations, and the reasons why a disk cannot enforce limits.

use std::io;
use std::path::PathBuf;

use super::name::NameError;

/// Why a disk operation failed.
#[derive(Debug, thiserror::Error)]
pub enum DiskError {
    /// The name is not valid for an area.
    #[error("invalid name for an area")]
    Name(#[from] NameError),
    /// There is already an area of this name.
    #[error("area {0} already exists")]
    AreaExists(String),
    /// There is no area of this name.
    #[error("there is no area {0}")]
    NoSuchArea(String),
    /// The area cannot be limited.
    #[error("area {area} cannot be limited: {reason}")]
    CannotLimit { area: String, reason: NoLimit },
    /// Something else is mounted where the image belongs.
    #[error("another file system is mounted at {}; unmount it", .0.display())]
    ForeignMount(PathBuf),
    /// The image contains data but cannot be mounted. It is never replaced by an empty one.
    #[error("the disk image {} cannot be mounted; it is kept because it contains data", .image.display())]
    ImageUnusable { image: PathBuf, source: io::Error },
    /// Another process sets up or closes the same disk and does not finish.
    #[error("timed out waiting for another process that holds the lock {}", .0.display())]
    SetupBusy(PathBuf),
    /// The file system is in use: a file is open, or another mount namespace has a copy of the mount.
    #[error("{} is still in use by another process or mount namespace", .0.display())]
    StillInUse(PathBuf),
    /// Some removed areas could not be deleted.
    #[error("{0} removed areas could not be deleted")]
    TrashLeft(usize),
    /// A system call on a path failed.
    #[error("cannot {doing} {}", .path.display())]
    Path { doing: &'static str, path: PathBuf, source: io::Error },
    /// A system call on an area failed.
    #[error("cannot {doing} area {area}")]
    Area { doing: &'static str, area: String, source: io::Error },
}

/// Why areas have no limits. The text ends with what to do about it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoLimit {
    /// The program that formats the image is missing.
    #[error(
        "the state directory's file system has no project quota, and mkfs.btrfs is not installed; install the package btrfs-progs"
    )]
    NoMkfs,
    /// The program failed.
    #[error("mkfs.btrfs failed ({0}); install a current version of the package btrfs-progs")]
    MkfsFailed(String),
    /// There is no usable loop device.
    #[error("no usable loop device ({0}); load the module loop, or pass /dev/loop-control to the container")]
    NoLoopDevice(String),
    /// The kernel has no btrfs.
    #[error(
        "the kernel has no btrfs ({0}); install the kernel's extra modules, or mount the state directory's file system with prjquota"
    )]
    NoBtrfs(String),
    /// The kernel refuses to mount the image or to count usage.
    #[error("the disk image cannot be mounted ({0}); run as root")]
    MountRefused(String),
    /// There is not enough space even for a small image.
    #[error("only {free} bytes are free, but an image needs {least}; free space on the state directory's disk")]
    NoRoom { free: u64, least: u64 },
    /// The file system of the state directory cannot preallocate files.
    #[error(
        "the state directory's file system cannot preallocate files ({0}); use ext4, xfs or btrfs for the state directory"
    )]
    CannotAllocate(String),
    /// Areas without limits still exist, and the image would hide them.
    #[error("areas without limits are still in use; limits apply after a restart with none of them left")]
    OlderAreas,
    /// The area was created before limits were possible.
    #[error("the area was created before limits were possible")]
    OlderArea,
}

/// Adds what was being done, and to which path, to an I/O error.
pub(super) trait Context<T> {
    fn doing(self, doing: &'static str, path: impl Into<PathBuf>) -> Result<T, DiskError>;
    fn doing_area(self, doing: &'static str, area: &str) -> Result<T, DiskError>;
}

impl<T, E: Into<io::Error>> Context<T> for Result<T, E> {
    fn doing(self, doing: &'static str, path: impl Into<PathBuf>) -> Result<T, DiskError> {
        self.map_err(|source| DiskError::Path { doing, path: path.into(), source: source.into() })
    }

    fn doing_area(self, doing: &'static str, area: &str) -> Result<T, DiskError> {
        self.map_err(|source| area_error(doing, area, source.into()))
    }
}

fn area_error(doing: &'static str, area: &str, source: io::Error) -> DiskError {
    match source.kind() {
        io::ErrorKind::NotFound => DiskError::NoSuchArea(area.to_owned()),
        io::ErrorKind::AlreadyExists => DiskError::AreaExists(area.to_owned()),
        _ => DiskError::Area { doing, area: area.to_owned(), source },
    }
}

/// Whether a write failed for lack of space. A limit results in EDQUOT on btrfs and ext4, and in ENOSPC on xfs. A full
/// disk results in ENOSPC too. To a user, both are the same.
pub fn is_disk_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::QuotaExceeded | io::ErrorKind::StorageFull)
}
