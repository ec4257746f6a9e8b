//! Mounting a part of the workspace in a sandbox that runs.
//!
//! A child of the spawner enters the sandbox's user namespace, opens the FUSE device there (the kernel takes no connection
//! that was opened in another one), enters the mount namespace and mounts. Only the connection comes out again, to be served
//! by somebody outside; inside there is neither the device nor a process.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::fs::{AtFlags, Mode, OFlags, ResolveFlags, StatxFlags, mkdirat, open, openat2, statx};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, UnmountFlags, fsconfig_create, fsconfig_set_flag, fsconfig_set_string,
    fsmount, fsopen, unmount,
};
use serde::{Deserialize, Serialize};

use super::LaunchError;
use super::channel::Channel;
use super::step::{Failure, Step};
use crate::sys::cred::{set_group_ids, set_user_ids};
use crate::sys::mount::attach;
use crate::sys::ns::{Namespaces, enter};

/// What to mount in which sandbox.
#[derive(Debug)]
pub struct WorkspaceRequest<'a> {
    /// `/proc/PID/ns/user` of its first process.
    pub user_namespace: BorrowedFd<'a>,
    /// `/proc/PID/ns/mnt` of its first process.
    pub mount_namespace: BorrowedFd<'a>,
    /// The host's `/dev/fuse`, opened as a path only.
    pub device: BorrowedFd<'a>,
    /// An absolute path inside, without `.` and `..`. Directories that are missing are made.
    pub path: &'a str,
    /// Nothing can be written through it.
    pub read_only: bool,
    /// What was mounted there before, by a life of the server that is over, goes first.
    pub replace: bool,
}

/// A mount that nobody serves yet: whoever looks into it waits.
#[derive(Debug)]
pub struct WorkspaceConnection {
    /// The FUSE connection.
    pub fd: OwnedFd,
    /// The kernel's number of it, under which it can be aborted.
    pub number: u32,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct WorkspaceOrder {
    pub(super) path: String,
    pub(super) read_only: bool,
    pub(super) replace: bool,
}

/// From the child to the server. With `Mounted` comes the connection.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum WorkspaceReply {
    Mounted { number: u32 },
    Failed(Failure),
}

/// Runs the child's life. Fds: the channel, the user namespace, the mount namespace, the device.
pub(super) fn run(order: &WorkspaceOrder, fds: Vec<OwnedFd>) {
    let Ok([channel, user, mounts, device]) = <[OwnedFd; 4]>::try_from(fds) else { return };
    let channel = Channel::new(channel, Duration::ZERO);
    // A server that is gone needs no answer, and then the connection ends with us.
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
    // Still as the host's root, who alone may open the device, and by the host's /proc.
    let device = open(format!("/proc/self/fd/{}", device.as_raw_fd()), OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
        .step("open the FUSE device")?;
    enter(mounts, Namespaces::MOUNT).step("enter the mount namespace")?;
    // Directories that are made belong to the sandbox's root.
    set_group_ids(Some(0), Some(0), Some(0)).step("become the sandbox's root group")?;
    set_user_ids(Some(0), Some(0), Some(0)).step("become the sandbox's root")?;
    if order.replace {
        remove_former(&order.path)?;
    }
    let tree = filesystem(&device, order.read_only)?;
    let number = number_of(&tree)?;
    attach(&tree, directory(&order.path)?).step("attach the workspace")?;
    Ok((device, number))
}

/// The same options as on the host: no rights are gained through it, and device nodes do not work.
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

/// Asked without asking the one who serves it: nobody does yet.
fn number_of(tree: &OwnedFd) -> Result<u32, Failure> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    Ok(statx(tree, "", flags, StatxFlags::TYPE).step("look at the workspace")?.stx_dev_minor)
}

/// Every step of the path is a real directory: no link that the sandbox made leads to another place.
fn directory(path: &str) -> Result<OwnedFd, Failure> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let mut at = open("/", flags, Mode::empty()).step("open the root")?;
    for part in parts(path) {
        let what = format!("use {path}, of which every part must be a directory and no link");
        let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::BENEATH;
        let next = match openat2(&at, part, flags, Mode::empty(), resolve) {
            Err(Errno::NOENT) => {
                mkdirat(&at, part, Mode::from_raw_mode(0o755)).step(&what)?;
                openat2(&at, part, flags, Mode::empty(), resolve)
            }
            other => other,
        };
        at = next.step(&what)?;
    }
    Ok(at)
}

/// A mount whose server is gone answers to nothing, but can be taken away by its path.
fn remove_former(path: &str) -> Result<(), Failure> {
    match unmount(path, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW) {
        Ok(()) | Err(Errno::INVAL | Errno::NOENT | Errno::NOTDIR) => Ok(()),
        Err(error) => Err(error).step("take the former mount away"),
    }
}

fn parts(path: &str) -> impl Iterator<Item = &str> {
    path.split('/').filter(|part| !part.is_empty())
}

/// A mount that a child of the spawner is making.
#[derive(Debug)]
pub struct MountingWorkspace {
    channel: Channel,
}

impl MountingWorkspace {
    pub(super) fn new(channel: Channel) -> Self {
        Self { channel }
    }

    /// Waits until it is there.
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
