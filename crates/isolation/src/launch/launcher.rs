//! The launcher: one process per sandbox that makes everything ready, clones the first process and exits.

use std::fs::{self, File};
use std::io::{Seek, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::time::Duration;

use rustix::fs::{Mode, OFlags, fstatfs, open};
use rustix::process::{Signal, pidfd_send_signal};

use super::ZygoteProgram;
use super::channel::Channel;
use super::init;
use super::message::{PrepareOrder, Progress, RoleOrder};
use super::root::{self, Trees};
use super::step::{Failure, Step};
use super::zygote;
use crate::seccomp::zygote_filter;
use crate::sys::cred::{set_group_ids, set_user_ids};
use crate::sys::ns::{Namespaces, enter};
use crate::sys::process::{Fork, exit_now, fork_into, hold};
use crate::sys::seccomp::Instruction;

/// The number of ids in a sandbox's range.
const RANGE: u32 = 65_536;
const PROC_SUPER_MAGIC: i64 = 0x9fa0;

/// The descriptors that came with the order.
struct Handed {
    channel: Channel,
    guest: OwnedFd,
    netns: Option<OwnedFd>,
    trees: Trees,
    cgroups: Vec<File>,
}

/// Runs the launcher's life. Errors are told to the server; there is nobody else to tell.
pub(super) fn run(order: &PrepareOrder, fds: Vec<OwnedFd>, filter: &[Instruction]) {
    let Some(handed) = sort_fds(order, fds) else { return };
    let made = prepare(order, &handed).and_then(|made| {
        let (pid, pidfd) = clone_init(order, &handed, &made.user_namespace, filter)?;
        Ok((pid, pidfd, made.memory))
    });
    // A server that is gone does not listen, and needs no answer.
    let _ = match made {
        Ok((pid, pidfd, memory)) => handed.channel.send(&Progress::Cloned { pid }, &[pidfd.as_fd(), memory.as_fd()]),
        Err(failure) => handed.channel.send(&Progress::Failed(failure), &[]),
    };
}

fn sort_fds(order: &PrepareOrder, fds: Vec<OwnedFd>) -> Option<Handed> {
    let mut fds = fds.into_iter();
    Some(Handed {
        channel: Channel::new(fds.next()?, Duration::ZERO),
        guest: fds.next()?,
        netns: if order.has_netns { Some(fds.next()?) } else { None },
        trees: Trees {
            upper: fds.next()?,
            kept: if order.kept_root.is_empty() { None } else { Some(fds.next()?) },
            root: fds.by_ref().take(order.root_layers).collect(),
            usr: fds.by_ref().take(order.usr_layers).collect(),
        },
        cgroups: fds.by_ref().take(order.cgroups).map(File::from).collect(),
    })
}

/// What the first process begins with, and what can still be changed about it.
struct Made {
    user_namespace: OwnedFd,
    memory: OwnedFd,
}

fn prepare(order: &PrepareOrder, handed: &Handed) -> Result<Made, Failure> {
    join_cgroups(&handed.cgroups)?;
    if let Some(netns) = &handed.netns {
        enter(netns, Namespaces::NET).step("enter the network namespace")?;
    }
    let owner = match &order.role {
        RoleOrder::Sandbox { owner } => *owner,
        // It does not enter the namespace, which only maps the ids of its files.
        RoleOrder::Zygote(_) => order.first_id,
    };
    let (user_namespace, netns) = make_user_namespace(owner, order.first_id, handed.netns.is_none())?;
    if let Some(netns) = netns {
        enter(&netns, Namespaces::NET).step("enter the new network namespace")?;
        // The server plumbs it while the root is built.
        handed.channel.send(&Progress::Network, &[netns.as_fd()]).step("hand the network namespace over")?;
    }
    let memory = root::build(&handed.trees, order, &user_namespace)?;
    Ok(Made { user_namespace, memory })
}

fn join_cgroups(entrances: &[File]) -> Result<(), Failure> {
    for mut entrance in entrances {
        entrance.write_all(b"0").step("join a cgroup")?;
    }
    Ok(())
}

/// Makes the sandbox's user namespace.
///
/// Its owner is never the host's root: the kernel counts inotify instances, namespaces and the like against the owner,
/// and all sandboxes with one owner would take them from each other.
///
/// A network namespace that is made with it belongs to it.
fn make_user_namespace(owner: u32, first_id: u32, with_net: bool) -> Result<(OwnedFd, Option<OwnedFd>), Failure> {
    set_group_ids(None, Some(owner), None).step("take the group of the owner")?;
    set_user_ids(None, Some(owner), None).step("take the user of the owner")?;
    let namespaces = if with_net { Namespaces::USER.and(Namespaces::NET) } else { Namespaces::USER };
    let (pid, pidfd) = hold(namespaces).step("make a user namespace")?;
    let made = take_back_root().and_then(|()| {
        let netns = with_net.then(|| open_namespace(pid, "net")).transpose()?;
        Ok((map_ids(pid, first_id)?, netns))
    });
    pidfd_send_signal(&pidfd, Signal::KILL).step("end the holder of the user namespace")?;
    made
}

fn take_back_root() -> Result<(), Failure> {
    set_user_ids(None, Some(0), None).step("take back root")?;
    set_group_ids(None, Some(0), None).step("take back root's group")
}

fn map_ids(pid: u32, first_id: u32) -> Result<OwnedFd, Failure> {
    let process = PathBuf::from(format!("/proc/{pid}"));
    for file in ["uid_map", "gid_map"] {
        let mut map = fs::OpenOptions::new().write(true).open(process.join(file)).step("open the id map")?;
        check_is_procfs(&map)?;
        map.write_all(format!("0 {first_id} {RANGE}").as_bytes()).step("write the id map")?;
        map.rewind().step("write the id map")?;
    }
    open_namespace(pid, "user")
}

fn open_namespace(pid: u32, name: &str) -> Result<OwnedFd, Failure> {
    open(format!("/proc/{pid}/ns/{name}"), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).step("open a namespace")
}

/// A write to procfs that something else caught would leave the sandbox without its map.
fn check_is_procfs(file: &File) -> Result<(), Failure> {
    let found = fstatfs(file).step("look at /proc")?.f_type;
    if found == PROC_SUPER_MAGIC {
        return Ok(());
    }
    Err(rustix::io::Errno::XDEV).step("write to procfs, because /proc is something else")
}

fn clone_init(
    order: &PrepareOrder,
    handed: &Handed,
    user_namespace: &OwnedFd,
    filter: &[Instruction],
) -> Result<(u32, OwnedFd), Failure> {
    if let RoleOrder::Zygote(program) = &order.role {
        return clone_zygote(order, program, handed);
    }
    enter(user_namespace, Namespaces::USER).step("enter the user namespace")?;
    let namespaces =
        Namespaces::PID.and(Namespaces::MOUNT).and(Namespaces::IPC).and(Namespaces::UTS).and(Namespaces::CGROUP);
    match fork_into(namespaces).step("clone the first process")? {
        Fork::Child => {
            init::run(order, &handed.channel, &handed.guest, filter);
            exit_now(1)
        }
        Fork::Parent { pid, pidfd } => Ok((pid, pidfd)),
    }
}

/// In the host's user and pid namespaces: from there it can enter sandboxes, and inside one it could not.
fn clone_zygote(order: &PrepareOrder, program: &ZygoteProgram, handed: &Handed) -> Result<(u32, OwnedFd), Failure> {
    let filter = zygote_filter();
    let namespaces = Namespaces::MOUNT.and(Namespaces::IPC).and(Namespaces::UTS).and(Namespaces::CGROUP);
    match fork_into(namespaces).step("clone the zygote")? {
        Fork::Child => {
            zygote::run(order, program, &handed.channel, &filter);
            exit_now(1)
        }
        Fork::Parent { pid, pidfd } => Ok((pid, pidfd)),
    }
}
