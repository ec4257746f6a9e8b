//! Btrfs subvolumes and qgroups by ioctl: about 2 ms faster per step than running the `btrfs` program.
//!
//! All of it needs CAP_SYS_ADMIN in the initial user namespace, except creating a subvolume.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use rustix::fs::FileType;

use super::ioctl::{ioc_both, ioc_read, ioc_write, ioctl_number, ioctl_with};

/// `f_type` of a btrfs file system.
pub const SUPER_MAGIC: u64 = 0x9123_683e;

/// The inode number of the top directory of every subvolume. No other directory has it.
const SUBVOLUME_TOP_INODE: u64 = 256;

const KIND: u8 = 0x94;
const NAME_ROOM: usize = 4088;

/// How a file system counts the usage of its subvolumes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuotaState {
    /// No counting, so limits are refused.
    Off,
    /// Counts shared extents exactly, at a cost that grows with snapshots.
    Full,
    /// Charges an extent to the subvolume that first wrote it. Cheap; since Linux 6.7.
    Simple,
}

/// The usage of one qgroup at the last committed transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QgroupFigures {
    /// Bytes of all extents that the subvolume refers to.
    pub referenced: u64,
    /// The limit of `referenced`.
    pub max_referenced: Option<u64>,
}

#[repr(C)]
struct VolArgs {
    fd: i64,
    name: [u8; NAME_ROOM],
}

/// Creates the empty subvolume `name` in the directory `parent`.
pub fn create_subvolume(parent: BorrowedFd<'_>, name: &str) -> io::Result<()> {
    let mut args = vol_args(name)?;
    // SAFETY: BTRFS_IOC_SUBVOL_CREATE reads a btrfs_ioctl_vol_args, which `VolArgs` mirrors; the name ends with NUL
    // because `vol_args` leaves the last byte zero.
    unsafe { ioctl_with(parent, const { ioc_write::<VolArgs>(KIND, 14) }, &mut args) }.map(drop)
}

/// Creates the subvolume `name` in the directory `parent`, with the present content of another one. They share what neither
/// of them changes.
pub fn snapshot_subvolume(source: BorrowedFd<'_>, parent: BorrowedFd<'_>, name: &str) -> io::Result<()> {
    let mut args = VolArgs { fd: source.as_raw_fd().into(), ..vol_args(name)? };
    // SAFETY: BTRFS_IOC_SNAP_CREATE reads a btrfs_ioctl_vol_args, which `VolArgs` mirrors; the name ends with NUL, and the
    // source is open for the length of the call.
    unsafe { ioctl_with(parent, const { ioc_write::<VolArgs>(KIND, 1) }, &mut args) }.map(drop)
}

/// Unlinks the subvolume `name` from the directory `parent`. The kernel frees its extents later.
///
/// Fails with ENOTEMPTY if another subvolume is inside, and with EINVAL if `name` is a plain directory.
pub fn destroy_subvolume(parent: BorrowedFd<'_>, name: &str) -> io::Result<()> {
    let mut args = vol_args(name)?;
    // SAFETY: BTRFS_IOC_SNAP_DESTROY reads a btrfs_ioctl_vol_args, which `VolArgs` mirrors; the name ends with NUL.
    unsafe { ioctl_with(parent, const { ioc_write::<VolArgs>(KIND, 15) }, &mut args) }.map(drop)
}

fn vol_args(name: &str) -> io::Result<VolArgs> {
    if name.is_empty() || name.len() >= NAME_ROOM || name.contains(['/', '\0']) {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    let mut args = VolArgs { fd: 0, name: [0; NAME_ROOM] };
    args.name[..name.len()].copy_from_slice(name.as_bytes());
    Ok(args)
}

/// Whether the descriptor is a directory of a btrfs file system.
pub fn is_btrfs(fd: BorrowedFd<'_>) -> io::Result<bool> {
    let magic = rustix::fs::fstatfs(fd)?.f_type;
    Ok(magic as u64 & 0xffff_ffff == SUPER_MAGIC)
}

/// Whether the descriptor is the top directory of a subvolume.
pub fn is_subvolume(fd: BorrowedFd<'_>) -> io::Result<bool> {
    let stat = rustix::fs::fstat(fd)?;
    let is_directory = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
    Ok(is_directory && stat.st_ino == SUBVOLUME_TOP_INODE && is_btrfs(fd)?)
}

#[repr(C)]
struct InoLookupArgs {
    tree: u64,
    object: u64,
    name: [u8; 4080],
}

/// Returns the id of the subvolume that contains the descriptor, which is also the id of its qgroup.
pub fn subvolume_id(fd: BorrowedFd<'_>) -> io::Result<u64> {
    let mut args = InoLookupArgs { tree: 0, object: SUBVOLUME_TOP_INODE, name: [0; 4080] };
    // SAFETY: BTRFS_IOC_INO_LOOKUP reads and writes a btrfs_ioctl_ino_lookup_args, which `InoLookupArgs` mirrors.
    unsafe { ioctl_with(fd, const { ioc_both::<InoLookupArgs>(KIND, 18) }, &mut args) }?;
    Ok(args.tree)
}

#[repr(C)]
struct FsInfoArgs {
    max_id: u64,
    devices: u64,
    fsid: [u8; 16],
    rest: [u8; 992],
}

/// Returns the UUID of the file system in the format of sysfs.
pub fn filesystem_uuid(fd: BorrowedFd<'_>) -> io::Result<String> {
    let mut args = FsInfoArgs { max_id: 0, devices: 0, fsid: [0; 16], rest: [0; 992] };
    // SAFETY: BTRFS_IOC_FS_INFO writes a btrfs_ioctl_fs_info_args of 1024 bytes, which is the size of `FsInfoArgs`.
    unsafe { ioctl_with(fd, const { ioc_read::<FsInfoArgs>(KIND, 31) }, &mut args) }?;
    let id = &args.fsid;
    Ok([&id[..4], &id[4..6], &id[6..8], &id[8..10], &id[10..]].map(hex::encode).join("-"))
}

/// The number of the only device of a file system that was created on one.
const FIRST_DEVICE: u64 = 1;

/// Sets the size of the only device, or uses all of it. Growing takes a commit. Shrinking moves what is behind the new
/// end, and fails with ENOSPC if there is no room for it.
pub fn resize(fd: BorrowedFd<'_>, size: Option<u64>) -> io::Result<()> {
    let size = size.map_or_else(|| "max".to_owned(), |size| size.to_string());
    let mut args = vol_args(&format!("{FIRST_DEVICE}:{size}"))?;
    // SAFETY: BTRFS_IOC_RESIZE reads a btrfs_ioctl_vol_args, which `VolArgs` mirrors; the text ends with NUL.
    unsafe { ioctl_with(fd, const { ioc_write::<VolArgs>(KIND, 3) }, &mut args) }.map(drop)
}

#[repr(C)]
struct DevInfoArgs {
    device: u64,
    uuid: [u8; 16],
    bytes_used: u64,
    total_bytes: u64,
    rest: [u8; 4056],
}

/// Returns how much of the only device the file system uses.
pub fn device_size(fd: BorrowedFd<'_>) -> io::Result<u64> {
    let mut args = DevInfoArgs { device: FIRST_DEVICE, uuid: [0; 16], bytes_used: 0, total_bytes: 0, rest: [0; 4056] };
    // SAFETY: BTRFS_IOC_DEV_INFO reads and writes a btrfs_ioctl_dev_info_args of 4096 bytes, mirrored by `DevInfoArgs`.
    unsafe { ioctl_with(fd, const { ioc_both::<DevInfoArgs>(KIND, 30) }, &mut args) }?;
    Ok(args.total_bytes)
}

#[repr(C)]
struct QuotaCtlArgs {
    command: u64,
    status: u64,
}

/// Sets how usage is counted. `Simple` fails with EINVAL before Linux 6.7. `Off` stops counting and removes all limits.
pub fn set_quota_state(fd: BorrowedFd<'_>, state: QuotaState) -> io::Result<()> {
    let command = match state {
        QuotaState::Full => 1,
        QuotaState::Off => 2,
        QuotaState::Simple => 4,
    };
    let mut args = QuotaCtlArgs { command, status: 0 };
    // SAFETY: BTRFS_IOC_QUOTA_CTL reads and writes a btrfs_ioctl_quota_ctl_args, which `QuotaCtlArgs` mirrors.
    unsafe { ioctl_with(fd, const { ioc_both::<QuotaCtlArgs>(KIND, 40) }, &mut args) }.map(drop)
}

#[repr(C)]
struct QgroupLimitArgs {
    qgroup: u64,
    flags: u64,
    max_referenced: u64,
    max_exclusive: u64,
    reserved_referenced: u64,
    reserved_exclusive: u64,
}

const LIMIT_MAX_REFERENCED: u64 = 1;

/// Limits the subvolume that contains the descriptor. `None` removes the limit.
pub fn limit_subvolume(fd: BorrowedFd<'_>, max_referenced: Option<u64>) -> io::Result<()> {
    // Qgroup 0 stands for the subvolume of the descriptor, and all ones for "no limit".
    let mut args = QgroupLimitArgs {
        qgroup: 0,
        flags: LIMIT_MAX_REFERENCED,
        max_referenced: max_referenced.unwrap_or(u64::MAX),
        max_exclusive: 0,
        reserved_referenced: 0,
        reserved_exclusive: 0,
    };
    // SAFETY: BTRFS_IOC_QGROUP_LIMIT (declared as _IOR) reads a btrfs_ioctl_qgroup_limit_args, mirrored here.
    unsafe { ioctl_with(fd, const { ioc_read::<QgroupLimitArgs>(KIND, 43) }, &mut args) }.map(drop)
}

#[repr(C)]
struct QgroupCreateArgs {
    create: u64,
    qgroup: u64,
}

/// Removes a qgroup whose subvolume is gone. Fails with EBUSY while the kernel still frees the subvolume's extents.
pub fn destroy_qgroup(fd: BorrowedFd<'_>, qgroup: u64) -> io::Result<()> {
    let mut args = QgroupCreateArgs { create: 0, qgroup };
    // SAFETY: BTRFS_IOC_QGROUP_CREATE reads a btrfs_ioctl_qgroup_create_args, which `QgroupCreateArgs` mirrors.
    unsafe { ioctl_with(fd, const { ioc_write::<QgroupCreateArgs>(KIND, 42) }, &mut args) }.map(drop)
}

/// Commits the current transaction and waits for it.
pub fn sync(fd: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: BTRFS_IOC_SYNC takes no argument.
    unsafe { ioctl_number(fd, super::ioctl::ioc(0, KIND, 8, 0), 0) }.map(drop)
}

#[repr(C)]
struct SearchArgs {
    tree: u64,
    min_object: u64,
    max_object: u64,
    min_offset: u64,
    max_offset: u64,
    min_transaction: u64,
    max_transaction: u64,
    min_kind: u32,
    max_kind: u32,
    items: u32,
    unused: u32,
    unused_words: [u64; 4],
    found: [u8; 3992],
}

const ROOT_TREE: u64 = 1;
const QUOTA_TREE: u64 = 8;
const ROOT_ITEM: u32 = 132;
const QGROUP_STATUS: u32 = 240;
const QGROUP_INFO: u32 = 242;
const QGROUP_LIMIT: u32 = 244;

/// The range of a search: one tree, one object, one kind of item, offsets from `first` to `last`.
struct Search {
    tree: u64,
    object: u64,
    kind: u32,
    first: u64,
    last: u64,
}

struct Item {
    offset: u64,
    body: Vec<u8>,
}

/// Returns how the file system counts now.
pub fn quota_state(fd: BorrowedFd<'_>) -> io::Result<QuotaState> {
    let status = match search_one(fd, &Search { tree: QUOTA_TREE, object: 0, kind: QGROUP_STATUS, first: 0, last: 0 }) {
        Ok(status) => status,
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => return Ok(QuotaState::Off),
        Err(error) => return Err(error),
    };
    const ON: u64 = 1;
    const SIMPLE: u64 = 1 << 3;
    let flags = status.and_then(|item| word(&item.body, 2)).unwrap_or(0);
    Ok(match (flags & ON != 0, flags & SIMPLE != 0) {
        (false, _) => QuotaState::Off,
        (true, false) => QuotaState::Full,
        (true, true) => QuotaState::Simple,
    })
}

/// Returns the usage and limit of a qgroup, or `None` if there is no such qgroup.
pub fn qgroup_figures(fd: BorrowedFd<'_>, qgroup: u64) -> io::Result<Option<QgroupFigures>> {
    let of_kind = |kind| Search { tree: QUOTA_TREE, object: 0, kind, first: qgroup, last: qgroup };
    let Some(usage) = search_one(fd, &of_kind(QGROUP_INFO))? else { return Ok(None) };
    let limit = search_one(fd, &of_kind(QGROUP_LIMIT))?;
    let has_limit = |body: &[u8]| word(body, 0).is_some_and(|flags| flags & LIMIT_MAX_REFERENCED != 0);
    Ok(Some(QgroupFigures {
        referenced: word(&usage.body, 1).unwrap_or(0),
        max_referenced: limit.filter(|item| has_limit(&item.body)).and_then(|item| word(&item.body, 1)),
    }))
}

/// Returns the qgroups that belong (or belonged) to subvolumes, at most a few dozen per call, starting with `first`.
pub fn subvolume_qgroups(fd: BorrowedFd<'_>, first: u64) -> io::Result<Vec<u64>> {
    const LAST_OF_LEVEL_0: u64 = (1 << 48) - 1;
    let search = Search { tree: QUOTA_TREE, object: 0, kind: QGROUP_INFO, first, last: LAST_OF_LEVEL_0 };
    Ok(search_tree(fd, &search)?.into_iter().map(|item| item.offset).collect())
}

/// Whether a subvolume with this id exists, including one that is already unlinked but not yet freed.
pub fn subvolume_exists(fd: BorrowedFd<'_>, id: u64) -> io::Result<bool> {
    let search = Search { tree: ROOT_TREE, object: id, kind: ROOT_ITEM, first: 0, last: u64::MAX };
    Ok(search_one(fd, &search)?.is_some())
}

fn search_one(fd: BorrowedFd<'_>, search: &Search) -> io::Result<Option<Item>> {
    Ok(search_tree(fd, search)?.into_iter().next())
}

fn search_tree(fd: BorrowedFd<'_>, search: &Search) -> io::Result<Vec<Item>> {
    let mut args = SearchArgs {
        tree: search.tree,
        min_object: search.object,
        max_object: search.object,
        min_offset: search.first,
        max_offset: search.last,
        min_transaction: 0,
        max_transaction: u64::MAX,
        min_kind: search.kind,
        max_kind: search.kind,
        items: 4096,
        unused: 0,
        unused_words: [0; 4],
        found: [0; 3992],
    };
    // SAFETY: BTRFS_IOC_TREE_SEARCH reads and writes a btrfs_ioctl_search_args of 4096 bytes, mirrored by `SearchArgs`.
    unsafe { ioctl_with(fd.as_fd(), const { ioc_both::<SearchArgs>(KIND, 17) }, &mut args) }?;
    Ok(parse_items(&args.found, args.items, search))
}

/// Parses the found items: each has a header (transaction, object, offset, kind, length) and a body.
fn parse_items(found: &[u8], count: u32, search: &Search) -> Vec<Item> {
    const HEADER: usize = 32;
    let mut items = Vec::new();
    let mut rest = found;
    for _ in 0..count {
        let (Some(object), Some(offset), Some(kind_and_length)) = (word(rest, 1), word(rest, 2), word(rest, 3)) else {
            break;
        };
        let (kind, length) = (kind_and_length as u32, (kind_and_length >> 32) as usize);
        let Some(body) = rest.get(HEADER..HEADER + length) else { break };
        // The range is over whole keys, so the result can contain neighbours of another kind.
        if object == search.object && kind == search.kind {
            items.push(Item { offset, body: body.to_vec() });
        }
        rest = &rest[HEADER + length..];
    }
    items
}

/// Returns the `index`th 64-bit word. Btrfs writes little-endian on disk. The headers are in the machine's own order,
/// which is the same on all machines that we build for.
fn word(bytes: &[u8], index: usize) -> Option<u64> {
    let bytes = bytes.get(index * 8..index * 8 + 8)?;
    Some(u64::from_le_bytes(bytes.try_into().ok()?))
}

#[cfg(target_endian = "big")]
compile_error!("the search headers of btrfs are read as little-endian");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_numbers_are_those_of_the_kernel_headers() {
        assert_eq!(ioc_write::<VolArgs>(KIND, 14) as u32, 0x5000_940e);
        assert_eq!(ioc_both::<SearchArgs>(KIND, 17) as u32, 0xd000_9411);
        assert_eq!(ioc_both::<InoLookupArgs>(KIND, 18) as u32, 0xd000_9412);
        assert_eq!(ioc_write::<VolArgs>(KIND, 3) as u32, 0x5000_9403);
        assert_eq!(ioc_both::<DevInfoArgs>(KIND, 30) as u32, 0xd000_941e);
        assert_eq!(ioc_read::<FsInfoArgs>(KIND, 31) as u32, 0x8400_941f);
        assert_eq!(ioc_both::<QuotaCtlArgs>(KIND, 40) as u32, 0xc010_9428);
        assert_eq!(ioc_write::<QgroupCreateArgs>(KIND, 42) as u32, 0x4010_942a);
        assert_eq!(ioc_read::<QgroupLimitArgs>(KIND, 43) as u32, 0x8030_942b);
    }

    #[test]
    fn names_that_are_paths_are_refused() {
        for name in ["", "a/b", "a\0b"] {
            assert!(vol_args(name).is_err(), "{name:?}");
        }
        assert!(vol_args(&"x".repeat(NAME_ROOM)).is_err());
    }

    #[test]
    fn a_truncated_answer_ends_the_list() {
        let search = Search { tree: 8, object: 0, kind: QGROUP_INFO, first: 0, last: 0 };
        let mut found = vec![0; 40];
        found[24..28].copy_from_slice(&QGROUP_INFO.to_le_bytes());
        found[28..32].copy_from_slice(&64u32.to_le_bytes());
        assert!(parse_items(&found, 3, &search).is_empty());
        found[28..32].copy_from_slice(&8u32.to_le_bytes());
        assert_eq!(parse_items(&found, 3, &search).len(), 1);
    }
}
