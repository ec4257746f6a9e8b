//! What can go wrong with the disk, and why a disk may be unable to limit.

use std::io;
use std::path::PathBuf;

use super::name::NameError;

/// Why a step with the disk failed.
#[derive(Debug, thiserror::Error)]
pub enum DiskError {
    /// Not a name for an area.
    #[error("not a name for an area")]
    Name(#[from] NameError),
    /// There is already an area of this name.
    #[error("area {0} is there already")]
    AreaExists(String),
    /// There is no area of this name.
    #[error("there is no area {0}")]
    NoSuchArea(String),
    /// The area cannot be limited.
    #[error("area {area} cannot be limited: {reason}")]
    CannotLimit { area: String, reason: NoLimit },
    /// Something else is mounted where the image belongs.
    #[error("{} is a mount that is not ours", .0.display())]
    ForeignMount(PathBuf),
    /// The image holds data but cannot be mounted. It is never replaced by an empty one.
    #[error("the disk image {} cannot be mounted; it holds data and stays as it is", .image.display())]
    ImageUnusable { image: PathBuf, source: io::Error },
    /// Another process sets up or closes the same disk and does not come to an end.
    #[error("another process holds {} for too long", .0.display())]
    SetupBusy(PathBuf),
    /// The file system is in use: an open file, or a copy of the mount in another mount namespace.
    #[error("{} is still in use", .0.display())]
    StillInUse(PathBuf),
    /// Some of the removed files could not be deleted.
    #[error("{0} removed areas could not be deleted")]
    TrashLeft(usize),
    /// A system call on a path failed.
    #[error("cannot {doing} {}", .path.display())]
    Path { doing: &'static str, path: PathBuf, source: io::Error },
    /// A system call on an area failed.
    #[error("cannot {doing} area {area}")]
    Area { doing: &'static str, area: String, source: io::Error },
}

/// Why areas have no limit. The text ends with what to do about it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoLimit {
    /// The program that makes the image is missing.
    #[error(
        "the state directory's file system has no project quota, and mkfs.btrfs is not installed; install the package btrfs-progs"
    )]
    NoMkfs,
    /// The program ran and failed.
    #[error("mkfs.btrfs failed ({0}); install a current package btrfs-progs")]
    MkfsFailed(String),
    /// There is no loop device to be had.
    #[error("no loop device ({0}); load the module loop, or give the container /dev/loop-control")]
    NoLoopDevice(String),
    /// The kernel has no btrfs.
    #[error(
        "the kernel has no btrfs ({0}); install the kernel's extra modules, or mount the state directory's file system with prjquota"
    )]
    NoBtrfs(String),
    /// Mounting or counting is refused.
    #[error("the disk image cannot be mounted ({0}); run as root")]
    MountRefused(String),
    /// Not even a small image fits.
    #[error("only {free} bytes are free, an image needs {least}; make room on the state directory's disk")]
    NoRoom { free: u64, least: u64 },
    /// The file system below cannot promise room for a file.
    #[error(
        "the state directory's file system cannot allocate a file ahead ({0}); use ext4, xfs or btrfs for the state directory"
    )]
    CannotAllocate(String),
    /// Areas from a time without limits are still there and would be hidden by the image.
    #[error("areas made without a limit are still in use; limits begin at the first start without any")]
    OlderAreas,
    /// The area was made before limits were possible.
    #[error("the area was made before limits were possible")]
    OlderArea,
}

/// Attaches what was being done, and to which path, to an I/O error.
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

/// Whether a write failed for lack of space. A limit shows as EDQUOT on btrfs and ext4, and as ENOSPC on xfs or when
/// the whole disk is full; to a user both are the same thing.
pub fn is_disk_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::QuotaExceeded | io::ErrorKind::StorageFull)
}
