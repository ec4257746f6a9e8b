//! Mounts by file descriptor: clones of trees, id-mapping, attaching, pivoting.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use super::check;

const OPEN_TREE_CLONE: libc::c_uint = 1;
const OPEN_TREE_CLOEXEC: libc::c_uint = libc::O_CLOEXEC as libc::c_uint;
const MOVE_MOUNT_F_EMPTY_PATH: libc::c_uint = 0x4;
const MOVE_MOUNT_T_EMPTY_PATH: libc::c_uint = 0x40;

const MOUNT_ATTR_RDONLY: u64 = 0x1;
const MOUNT_ATTR_NOSUID: u64 = 0x2;
const MOUNT_ATTR_NODEV: u64 = 0x4;
const MOUNT_ATTR_IDMAP: u64 = 0x0010_0000;

#[repr(C)]
struct MountAttr {
    set: u64,
    clear: u64,
    propagation: u64,
    userns_fd: u64,
}

/// Returns a detached copy of the mount at `path`. Mounts below it are not copied.
pub fn clone_tree(directory: impl AsFd, path: &CStr) -> io::Result<OwnedFd> {
    let flags = OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | libc::AT_EMPTY_PATH as libc::c_uint;
    // SAFETY: the path is NUL-terminated and outlives the call; the result is a new fd that only we own.
    unsafe {
        let fd = check(libc::syscall(libc::SYS_open_tree, directory.as_fd().as_raw_fd(), path.as_ptr(), flags))?;
        Ok(OwnedFd::from_raw_fd(fd as i32))
    }
}

/// The options of a detached mount.
#[derive(Clone, Copy, Debug, Default)]
pub struct TreeOptions<'fd> {
    /// Whether it is read-only.
    pub read_only: bool,
    /// Whether set-uid bits are ignored.
    pub no_set_uid: bool,
    /// Whether device nodes cannot be opened.
    pub no_devices: bool,
    /// The user namespace whose map applies to ids on disk.
    pub id_map: Option<BorrowedFd<'fd>>,
}

/// Sets the options of a detached mount.
pub fn set_tree_options(tree: impl AsFd, options: TreeOptions<'_>) -> io::Result<()> {
    let flag = |wanted: bool, bit: u64| if wanted { bit } else { 0 };
    let attributes = MountAttr {
        set: flag(options.read_only, MOUNT_ATTR_RDONLY)
            | flag(options.no_set_uid, MOUNT_ATTR_NOSUID)
            | flag(options.no_devices, MOUNT_ATTR_NODEV)
            | flag(options.id_map.is_some(), MOUNT_ATTR_IDMAP),
        clear: 0,
        propagation: 0,
        userns_fd: options.id_map.map_or(0, |fd| fd.as_raw_fd() as u64),
    };
    // SAFETY: the empty path with AT_EMPTY_PATH names `tree` itself; the structure has the size that is passed.
    check(unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            tree.as_fd().as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            &raw const attributes,
            size_of::<MountAttr>(),
        )
    })
    .map(drop)
}

/// Attaches a detached mount on the file or directory that `target` is open on.
///
/// The target is a descriptor rather than a path, so that no symbolic link can be swapped in between.
pub fn attach(tree: impl AsFd, target: impl AsFd) -> io::Result<()> {
    let flags = MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH;
    // SAFETY: both paths are the empty C string, as the two flags demand; both fds are open for the call.
    check(unsafe {
        libc::syscall(
            libc::SYS_move_mount,
            tree.as_fd().as_raw_fd(),
            c"".as_ptr(),
            target.as_fd().as_raw_fd(),
            c"".as_ptr(),
            flags,
        )
    })
    .map(drop)
}

/// Makes the current directory the root and stacks the old root on the same place, to be detached next.
pub fn pivot_to_current_directory() -> io::Result<()> {
    // SAFETY: both arguments are the same static C string.
    check(unsafe { libc::syscall(libc::SYS_pivot_root, c".".as_ptr(), c".".as_ptr()) }).map(drop)
}
