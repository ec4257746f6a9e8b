//! Mounts a part of the workspace in a running sandbox.
//!
//! A child of the spawner enters the sandbox's user namespace, opens the FUSE device there (the kernel accepts no
//! connection that was opened in another one), enters the mount namespace and mounts. Only the connection leaves the
//! sandbox, to be served by a process outside. Inside, there is neither the device nor a process.

use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, Mode, OFlags, ResolveFlags, StatxFlags, mkdirat, open, openat, openat2, statx};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, UnmountFlags, fsconfig_create, fsconfig_set_flag, fsconfig_set_string,
    fsmount, fsopen, unmount,
};
use rustix::process::{chdir, fchdir};
use serde::{Deserialize, Serialize};

use super::LaunchError;
use super::channel::Channel;
use super::step::{Failure, Step};
use crate::sys::cred::{set_group_ids, set_user_ids};
use crate::sys::mount::attach;
use crate::sys::ns::{Namespaces, enter};

/// What to mount, and in which sandbox.
#[derive(Debug)]
pub struct WorkspaceRequest<'a> {
    /// `/proc/PID/ns/user` of its first process.
    pub user_namespace: BorrowedFd<'a>,
    /// `/proc/PID/ns/mnt` of its first process.
    pub mount_namespace: BorrowedFd<'a>,
    /// The host's `/dev/fuse`, opened with `O_PATH`.
    pub device: BorrowedFd<'a>,
    /// An absolute path inside, without `.` and `..`. Missing directories are created.
    pub path: &'a str,
    /// Whether it is read-only.
    pub read_only: bool,
    /// An empty file to create with it, like `path`.
    pub ready_file: Option<&'a str>,
    /// Whether to unmount first what an earlier server mounted there.
    pub replace: bool,
}

/// A mount that is not served yet. Programs that access it wait.
#[derive(Debug)]
pub struct WorkspaceConnection {
    /// The FUSE connection.
    pub fd: OwnedFd,
    /// Its number in the kernel, by which it can be aborted.
    pub number: u32,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct WorkspaceOrder {
    pub(super) path: String,
    pub(super) read_only: bool,
    #[serde(default)]
    pub(super) ready_file: Option<String>,
    pub(super) replace: bool,
}

/// From the child to the server. `Mounted` comes with the connection.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum WorkspaceReply {
    Mounted { number: u32 },
    Failed(Failure),
}

/// Runs the child. Descriptors: the channel, the user namespace, the mount namespace, the device.
pub(super) fn run(order: &WorkspaceOrder, fds: Vec<OwnedFd>) {
    let Ok([channel, user, mounts, device]) = <[OwnedFd; 4]>::try_from(fds) else { return };
    let channel = Channel::new(channel);
    // If the server is gone, it needs no reply, and the connection ends with this process.
    let _ = match mount(order, &user, &mounts, &device) {
        Ok((connection, number)) => channel.send(&WorkspaceReply::Mounted { number }, &[connection.as_fd()]),
        Err(failure) => channel.send(&WorkspaceReply::Failed(failure), &[]),
    };
}

fn mount(
    order: &WorkspaceOrder,
    user: &OwnedFd,
    mounts: &OwnedFd,
    device: &OwnedFd,
) -> Result<(OwnedFd, u32), Failure> {
    enter(user, Namespaces::USER).step("enter the user namespace")?;
    // Still as the host's root, which alone may open the device, and through the host's /proc.
    let device = open(format!("/proc/self/fd/{}", device.as_raw_fd()), OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
        .step("open the FUSE device")?;
    // The host's, which shows processes outside. The sandbox's own does not.
    let proc = open("/proc", OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).step("open /proc")?;
    enter(mounts, Namespaces::MOUNT).step("enter the mount namespace")?;
    // New directories belong to the sandbox's root.
    set_group_ids(Some(0), Some(0), Some(0)).step("become the sandbox's root group")?;
    set_user_ids(Some(0), Some(0), Some(0)).step("become the sandbox's root")?;
    if order.replace {
        remove_former(&proc, &order.path)?;
    }
    let tree = filesystem(&device, order.read_only)?;
    let number = number_of(&tree)?;
    attach(&tree, directory(&order.path)?).step("attach the workspace")?;
    if let Some(file) = &order.ready_file {
        create_ready_file(file);
    }
    Ok((device, number))
}

/// What of the sandbox's own is in the way stays, and is no reason to have no workspace.
fn create_ready_file(path: &str) {
    let Some((parent, name)) = path.rsplit_once('/') else { return };
    let Ok(parent) = directory(parent) else { return };
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::WRONLY | OFlags::CLOEXEC;
    let _ = openat(&parent, name, flags, Mode::from_raw_mode(0o644));
}

/// The same options as on the host: no set-uid, and device nodes do not work.
fn filesystem(device: &OwnedFd, read_only: bool) -> Result<OwnedFd, Failure> {
    let context = fsopen("fuse", FsOpenFlags::FSOPEN_CLOEXEC).step("open a FUSE file system")?;
    let descriptor = device.as_raw_fd().to_string();
    let options = [
        ("source", "isopod"),
        ("subtype", "isopod"),
        ("fd", descriptor.as_str()),
        ("rootmode", "40000"),
        ("user_id", "0"),
        ("group_id", "0"),
    ];
    for (key, value) in options {
        fsconfig_set_string(&context, key, value).step("set an option of the workspace")?;
    }
    fsconfig_set_flag(&context, "allow_other").step("open the workspace to all users inside")?;
    fsconfig_create(&context).step("make the file system of the workspace")?;
    let mut attributes = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
    if read_only {
        attributes |= MountAttrFlags::MOUNT_ATTR_RDONLY;
    }
    fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes).step("mount the workspace")
}

/// Determined without a request to the mount's server, because there is none yet.
fn number_of(tree: &OwnedFd) -> Result<u32, Failure> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    Ok(statx(tree, "", flags, StatxFlags::TYPE).step("look at the workspace")?.stx_dev_minor)
}

const DIRECTORY: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC).union(OFlags::NOFOLLOW);

/// Opens a directory below another one, without following links.
fn open_in(at: &OwnedFd, path: &str) -> rustix::io::Result<OwnedFd> {
    openat2(at, path, DIRECTORY, Mode::empty(), ResolveFlags::NO_SYMLINKS | ResolveFlags::BENEATH)
}

/// Opens every component as a real directory, so that no link of the sandbox leads elsewhere.
fn directory(path: &str) -> Result<OwnedFd, Failure> {
    let mut at = open("/", DIRECTORY, Mode::empty()).step("open the root")?;
    for part in parts(path) {
        let what = format!("use {path}, of which every part must be a directory and no link");
        let next = match open_in(&at, part) {
            Err(Errno::NOENT) => {
                mkdirat(&at, part, Mode::from_raw_mode(0o755)).step(&what)?;
                open_in(&at, part)
            }
            other => other,
        };
        at = next.step(&what)?;
    }
    Ok(at)
}

/// A mount whose server is gone does not answer, but can be unmounted by its name.
///
/// The sandbox may have put links into the path since. They could lead to other mounts, such as those that cover parts
/// of `/proc`. Therefore the directory is opened without following links, and only a workspace is unmounted. An
/// obstacle here is also an obstacle for the new mount, which reports it.
fn remove_former(proc: &OwnedFd, path: &str) -> Result<(), Failure> {
    let Some((parent, name)) = path.trim_end_matches('/').rsplit_once('/') else { return Ok(()) };
    let root = open("/", DIRECTORY, Mode::empty()).step("open the root")?;
    let parent = parent.trim_matches('/');
    let parent = if parent.is_empty() { Ok(root) } else { open_in(&root, parent) };
    let Ok(parent) = parent else { return Ok(()) };
    let Ok(mount) = open_in(&parent, name) else { return Ok(()) };
    if !is_workspace(proc, &mount)? {
        return Ok(());
    }
    fchdir(&parent).step("go to the former mount")?;
    let removed = unmount(name, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW);
    chdir("/").step("go to the root")?;
    removed.step("take the former mount away")
}

/// Checks the kernel's list of mounts, because the mount's server cannot be asked.
fn is_workspace(proc: &OwnedFd, mount: &OwnedFd) -> Result<bool, Failure> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let id = statx(mount, "", flags, StatxFlags::MNT_ID).step("look at the former mount")?.stx_mnt_id.to_string();
    let list = openat(proc, "self/mountinfo", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
    let list = File::from(list.step("open the list of mounts")?);
    Ok(kind_of_mount(list, &id).step("read the list of mounts")?.is_some_and(|kind| kind == "fuse.isopod"))
}

/// The file system of the mount with this id. The list is the sandbox's, which may make it long, so only its beginning
/// is read: room for 64,000 mounts with paths of usual length.
fn kind_of_mount(list: impl Read, id: &str) -> io::Result<Option<String>> {
    let mut read = 0;
    for line in BufReader::new(list.take(MAX_MOUNT_LIST)).split(b'\n') {
        let line = line?;
        read += line.len() as u64 + 1;
        let line = String::from_utf8_lossy(&line);
        if line.split(' ').next() == Some(id) {
            let kind = line.split_once(" - ").and_then(|(_, rest)| rest.split(' ').next());
            return Ok(kind.map(str::to_owned));
        }
    }
    if read >= MAX_MOUNT_LIST { Err(Errno::FBIG.into()) } else { Ok(None) }
}

const MAX_MOUNT_LIST: u64 = 8 << 20;

fn parts(path: &str) -> impl Iterator<Item = &str> {
    path.split('/').filter(|part| !part.is_empty())
}

/// A mount that a child of the spawner is creating.
#[derive(Debug)]
pub struct MountingWorkspace {
    channel: Channel,
}

impl MountingWorkspace {
    pub(super) fn new(channel: Channel) -> Self {
        Self { channel }
    }

    /// Waits until it is mounted.
    pub fn wait(self) -> Result<WorkspaceConnection, LaunchError> {
        let broken = LaunchError::channel("mounter");
        match self.channel.receive::<WorkspaceReply>() {
            Err(error) => Err(broken(error)),
            Ok((WorkspaceReply::Failed(failure), _)) => Err(failure.into()),
            Ok((WorkspaceReply::Mounted { number }, mut fds)) => match fds.pop() {
                Some(fd) => Ok(WorkspaceConnection { fd, number }),
                None => Err(broken(io::ErrorKind::InvalidData.into())),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use rustix::mount::MountFlags;

    use super::super::root::leave_mount_namespace;
    use super::*;
    use crate::alone::alone;

    fn is_mounted(path: &Path) -> bool {
        let list = fs::read_to_string("/proc/self/mountinfo").expect("a list of mounts");
        list.lines().any(|line| line.split(' ').nth(4) == path.to_str())
    }

    #[test]
    fn a_mount_is_found_by_its_id_and_a_list_without_end_is_given_up() {
        let workspace = "61 22 0:44 / /work rw,relatime shared:2 - fuse.isopod none rw,user_id=0\n";
        let list = format!("6 22 0:4 / /x rw - tmpfs none rw\n161 22 0:4 / /- rw - ext4 none rw\n{workspace}62 cut");
        let kind = |id: &str| kind_of_mount(list.as_bytes(), id).expect("a list");
        assert_eq!(kind("61").as_deref(), Some("fuse.isopod"));
        assert_eq!(kind("6").as_deref(), Some("tmpfs"));
        assert_eq!((kind("62"), kind("1"), kind("")), (None, None, None));
        assert_eq!(
            kind_of_mount(&b"7 \xff - fuse.isopod none\n"[..], "7").expect("a list").as_deref(),
            Some("fuse.isopod")
        );

        let endless = io::repeat(b'x').chain(workspace.as_bytes());
        assert_eq!(kind_of_mount(endless, "61").expect_err("no end").raw_os_error(), Some(libc::EFBIG));
        let long = workspace.repeat((MAX_MOUNT_LIST as usize).div_ceil(workspace.len()));
        assert_eq!(kind_of_mount(long.as_bytes(), "62").expect_err("too long").raw_os_error(), Some(libc::EFBIG));
        assert!(kind_of_mount(long.as_bytes(), "61").is_ok_and(|kind| kind.is_some()), "found before the limit");
    }

    #[test]
    fn only_a_workspace_that_no_link_leads_to_is_taken_away() {
        alone("launch::workspace::tests::only_a_workspace_that_no_link_leads_to_is_taken_away", || {
            leave_mount_namespace().expect("a mount namespace");
            let proc = open("/proc", DIRECTORY, Mode::empty()).expect("/proc");
            let device = open("/dev/fuse", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).expect("a FUSE device");
            let place = tempfile::tempdir().expect("a directory");
            let (real, covered) = (place.path().join("real"), place.path().join("covered"));
            for directory in [real.join("keys"), real.join("work"), covered.clone()] {
                fs::create_dir_all(directory).expect("a directory");
            }
            let tmpfs = |path: &Path| rustix::mount::mount("none", path, "tmpfs", MountFlags::empty(), None);
            tmpfs(&real.join("keys")).expect("a mount");
            tmpfs(&covered).expect("a mount");
            let workspace = filesystem(&device, false).expect("a workspace");
            attach(&workspace, directory(real.join("work").to_str().expect("a path")).expect("a directory"))
                .expect("a mount");
            std::os::unix::fs::symlink(&real, place.path().join("link")).expect("a link");
            let remove = |path: &Path| remove_former(&proc, path.to_str().expect("a path")).expect("no trouble");

            // Through a link, whatever it is; and something that is not a workspace.
            for name in ["link/keys", "link/work", "real/keys", "covered", "missing/at/all", "link"] {
                remove(&place.path().join(name));
            }
            for path in [real.join("keys"), real.join("work"), covered] {
                assert!(is_mounted(&path), "{} was taken away", path.display());
            }
            remove(&real.join("work"));
            assert!(!is_mounted(&real.join("work")));
        });
    }
}
