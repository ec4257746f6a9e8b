//! Project quotas of ext4 and xfs: a directory tree has a project id, and the project has a limit.
//!
//! The VFS translates `Q_GETQUOTA` and `Q_SETQUOTA` for xfs too, so the same calls work for both file systems. Needs
//! `quotactl_fd` (Linux 5.14), which names the file system by a descriptor instead of a block device.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use super::ioctl::{ioc_read, ioc_write, ioctl_with};

const KIND: u8 = b'X';
const XFLAG_PROJECT_INHERIT: u32 = 0x200;

const PROJECT_QUOTA: u32 = 2;
const Q_GETQUOTA: u32 = 0x80_0007;
const Q_SETQUOTA: u32 = 0x80_0008;
const Q_XGETQSTATV: u32 = 0x5808;
const VALID_BLOCK_LIMITS: u32 = 1;
const VALID_INODE_LIMITS: u32 = 4;
/// Limits the number of files too: an empty file uses none of a project's bytes, but the file system's number of files
/// is limited.
const BYTES_PER_FILE: u64 = 4096;
/// The minimum limit of files for a project.
const MIN_FILES: u64 = 10_000;
/// The unit of limits in bytes, whatever the file system's own block size is.
const LIMIT_BLOCK: u64 = 1024;

/// Whether a file system counts and limits by project.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProjectQuota {
    /// Counts, and enforces limits.
    Enforced,
    /// Only counts: mounted without `prjquota`.
    CountedOnly,
    /// Neither, or the kernel does not support it.
    Absent,
}

/// The usage and limits of a project.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProjectFigures {
    /// Bytes in use.
    pub used: u64,
    /// The hard limit in bytes.
    pub limit: Option<u64>,
    /// The hard limit on files and directories.
    pub file_limit: Option<u64>,
}

#[repr(C)]
struct FsXattr {
    xflags: u32,
    extent_size: u32,
    extents: u32,
    project: u32,
    cow_extent_size: u32,
    padding: [u8; 8],
}

/// Returns the project id of a file or directory. 0 means none.
pub fn project_of(fd: BorrowedFd<'_>) -> io::Result<u32> {
    get_xattr(fd).map(|attributes| attributes.project)
}

/// Sets a directory's project id, which everything created below it inherits.
///
/// A sandbox cannot change it: the kernel allows that only in the initial user namespace.
pub fn set_project(directory: BorrowedFd<'_>, project: u32) -> io::Result<()> {
    let mut attributes = get_xattr(directory)?;
    attributes.project = project;
    attributes.xflags |= XFLAG_PROJECT_INHERIT;
    // SAFETY: FS_IOC_FSSETXATTR reads a struct fsxattr, which `FsXattr` mirrors.
    unsafe { ioctl_with(directory, const { ioc_write::<FsXattr>(KIND, 32) }, &mut attributes) }.map(drop)
}

fn get_xattr(fd: BorrowedFd<'_>) -> io::Result<FsXattr> {
    let mut attributes =
        FsXattr { xflags: 0, extent_size: 0, extents: 0, project: 0, cow_extent_size: 0, padding: [0; 8] };
    // SAFETY: FS_IOC_FSGETXATTR writes a struct fsxattr, which `FsXattr` mirrors.
    unsafe { ioctl_with(fd, const { ioc_read::<FsXattr>(KIND, 31) }, &mut attributes) }?;
    Ok(attributes)
}

#[repr(C)]
#[derive(Default)]
struct QuotaFile {
    inode: u64,
    blocks: u64,
    extents: u32,
    padding: u32,
}

#[repr(C)]
#[derive(Default)]
struct QuotaStatus {
    version: i8,
    padding_1: u8,
    flags: u16,
    in_core: u32,
    user: QuotaFile,
    group: QuotaFile,
    project: QuotaFile,
    time_limits: [i32; 3],
    warning_limits: [u16; 3],
    padding_3: u16,
    padding_4: u32,
    padding_2: [u64; 7],
}

/// Asks the file system of the descriptor. An error of any kind means that there is no project quota.
pub fn project_quota(fd: BorrowedFd<'_>) -> ProjectQuota {
    const COUNTED: u16 = 1 << 4;
    const ENFORCED: u16 = 1 << 5;
    let mut status = QuotaStatus { version: 1, ..QuotaStatus::default() };
    // SAFETY: Q_XGETQSTATV writes a struct fs_quota_statv of version 1, which `QuotaStatus` mirrors.
    let answer = unsafe { quotactl_fd(fd, Q_XGETQSTATV, 0, &mut status) };
    match answer {
        Ok(()) if status.flags & ENFORCED != 0 => ProjectQuota::Enforced,
        Ok(()) if status.flags & COUNTED != 0 => ProjectQuota::CountedOnly,
        _ => ProjectQuota::Absent,
    }
}

#[repr(C)]
#[derive(Default)]
struct QuotaBlock {
    block_hard_limit: u64,
    block_soft_limit: u64,
    space: u64,
    inode_hard_limit: u64,
    inode_soft_limit: u64,
    inodes: u64,
    block_time: u64,
    inode_time: u64,
    valid: u32,
}

/// Sets the hard limit of a project, rounded up to whole KiB, and a matching limit for its files. `None` removes both.
pub fn limit_project(fd: BorrowedFd<'_>, project: u32, limit: Option<u64>) -> io::Result<()> {
    // A limit of 0 blocks would mean no limit.
    let blocks = limit.map_or(0, |bytes| bytes.div_ceil(LIMIT_BLOCK).max(1));
    let mut block = QuotaBlock {
        block_hard_limit: blocks,
        inode_hard_limit: limit.map_or(0, |bytes| (bytes / BYTES_PER_FILE).max(MIN_FILES)),
        valid: VALID_BLOCK_LIMITS | VALID_INODE_LIMITS,
        ..QuotaBlock::default()
    };
    // SAFETY: Q_SETQUOTA reads a struct if_dqblk, which `QuotaBlock` mirrors.
    unsafe { quotactl_fd(fd, Q_SETQUOTA, project, &mut block) }
}

/// Returns the usage and limits of a project.
pub fn project_figures(fd: BorrowedFd<'_>, project: u32) -> io::Result<ProjectFigures> {
    let mut block = QuotaBlock::default();
    // SAFETY: Q_GETQUOTA writes a struct if_dqblk, which `QuotaBlock` mirrors.
    match unsafe { quotactl_fd(fd, Q_GETQUOTA, project, &mut block) } {
        Ok(()) => {}
        // xfs knows a project only from its first block or limit on.
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => {}
        Err(error) => return Err(error),
    }
    let limit = (block.block_hard_limit != 0).then(|| block.block_hard_limit.saturating_mul(LIMIT_BLOCK));
    let file_limit = (block.inode_hard_limit != 0).then_some(block.inode_hard_limit);
    Ok(ProjectFigures { used: block.space, limit, file_limit })
}

/// # Safety
/// `command` must read and write exactly a `T`, of which every bit pattern must be valid.
unsafe fn quotactl_fd<T>(fd: BorrowedFd<'_>, command: u32, id: u32, argument: &mut T) -> io::Result<()> {
    let command = libc::c_long::from(command << 8 | PROJECT_QUOTA);
    let argument = std::ptr::from_mut(argument);
    // SAFETY: the pointer comes from a live exclusive reference; the caller vouches that the command fits `T`.
    let result = unsafe { libc::syscall(libc::SYS_quotactl_fd, fd.as_raw_fd(), command, id, argument) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::os::fd::AsFd;
    use std::path::Path;
    use std::process::Command;

    use rustix::mount::{MountPropagationFlags, mount_change};

    use super::super::ns::{Namespaces, unshare};
    use super::*;
    use crate::alone::alone;
    use crate::capabilities::drop_all;

    #[test]
    fn structures_have_the_sizes_of_the_kernel_headers() {
        assert_eq!(size_of::<FsXattr>(), 28);
        assert_eq!(size_of::<QuotaStatus>(), 160);
        assert_eq!(size_of::<QuotaBlock>(), 72);
        assert_eq!(ioc_read::<FsXattr>(KIND, 31) as u32, 0x801c_581f);
        assert_eq!(ioc_write::<FsXattr>(KIND, 32) as u32, 0x401c_5820);
    }

    /// Returns what this host lacks, if it does not support quotas.
    fn mount_with_quota(place: &Path) -> Result<(), String> {
        let run = |program: &str, arguments: &[&str]| {
            let output = Command::new(program).args(arguments).current_dir(place).output();
            let output = output.map_err(|error| format!("{program}: {error}"))?;
            let errors = String::from_utf8_lossy(&output.stderr).into_owned();
            if output.status.success() { Ok(()) } else { Err(format!("{program}: {errors}")) }
        };
        File::create(place.join("image")).and_then(|image| image.set_len(64 << 20)).expect("an image");
        fs::create_dir(place.join("files")).expect("a directory");
        run("mkfs.ext4", &["-q", "-N", "30000", "-O", "quota,project", "-E", "quotatype=prjquota", "image"])?;
        run("mount", &["-o", "loop,prjquota", "image", "files"])
    }

    #[test]
    fn a_limit_bounds_files_as_well_as_bytes() {
        alone("sys::project_quota::tests::a_limit_bounds_files_as_well_as_bytes", || {
            // The mount ends with this process.
            unshare(Namespaces::MOUNT).expect("a mount namespace");
            mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC).expect("mounts of our own");
            let place = tempfile::tempdir().expect("a directory");
            if let Err(reason) = mount_with_quota(place.path()) {
                eprintln!("skipped: {reason}");
                return;
            }
            let path = place.path().join("files/box");
            fs::create_dir(&path).expect("a directory");
            let directory = File::open(&path).expect("a directory");
            set_project(directory.as_fd(), 7).expect("a project");
            limit_project(directory.as_fd(), 7, Some(1 << 30)).expect("a limit");
            let figures = project_figures(directory.as_fd(), 7).expect("figures");
            assert_eq!((figures.limit, figures.file_limit), (Some(1 << 30), Some((1 << 30) / 4096)));
            limit_project(directory.as_fd(), 7, Some(8 << 20)).expect("a limit");
            let figures = project_figures(directory.as_fd(), 7).expect("figures");
            assert_eq!((figures.limit, figures.file_limit), (Some(8 << 20), Some(10_000)));
            // The limit does not apply to the host's root, but to a root without capabilities.
            drop_all().expect("no capabilities");
            let made = (0..30_000).map_while(|number| File::create(path.join(number.to_string())).ok()).count();
            assert_eq!(made, 9_999, "and the directory itself");
        });
    }

    #[test]
    fn a_file_system_without_quota_says_so() {
        let proc = File::open("/proc").unwrap();
        assert_eq!(project_quota(proc.as_fd()), ProjectQuota::Absent);
    }
}
