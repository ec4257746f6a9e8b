//! The launcher: one process per sandbox that prepares everything, clones the first process and exits.

use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};

use super::ZygoteProgram;
use super::boot_clock::set_clocks;
use super::channel::Channel;
use super::init;
use super::message::{PrepareOrder, Progress, RoleOrder};
use super::root::{self, Trees};
use super::spawner::keep_only;
use super::step::{Failure, Step};
use super::user_namespace::{self, Namespace, Wanted};
use super::zygote;
use crate::seccomp::{sandbox_filter, zygote_filter};
use crate::sys::ns::{Namespaces, enter};
use crate::sys::process::{Fork, exit_now, fork_into};
use crate::sys::seccomp::Instruction;

/// The descriptors of the order.
struct Descriptors {
    channel: Channel,
    guest: OwnedFd,
    netns: Option<OwnedFd>,
    trees: Trees,
    cgroups: Vec<File>,
}

/// Runs the launcher. Reports errors to the server.
pub(super) fn run(order: &PrepareOrder, fds: Vec<OwnedFd>, filter: &[Instruction]) {
    let Some(descriptors) = sort_fds(order, fds) else { return };
    let own_filter = (!order.features.is_none()).then(|| sandbox_filter(order.features));
    let filter = own_filter.as_deref().unwrap_or(filter);
    let made = prepare(order, &descriptors).and_then(|made| {
        let (pid, pidfd) = clone_init(order, &descriptors, &made.user_namespace, filter)?;
        Ok((pid, pidfd, made.memory))
    });
    // If the server is gone, it needs no reply.
    let _ = match made {
        Ok((pid, pidfd, memory)) => {
            descriptors.channel.send(&Progress::Cloned { pid }, &[pidfd.as_fd(), memory.as_fd()])
        }
        Err(failure) => descriptors.channel.send(&Progress::Failed(failure), &[]),
    };
}

fn sort_fds(order: &PrepareOrder, fds: Vec<OwnedFd>) -> Option<Descriptors> {
    let mut fds = fds.into_iter();
    Some(Descriptors {
        channel: Channel::new(fds.next()?),
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

/// What the first process starts with, and what can still be changed about it.
struct Made {
    user_namespace: OwnedFd,
    memory: OwnedFd,
}

fn prepare(order: &PrepareOrder, descriptors: &Descriptors) -> Result<Made, Failure> {
    join_cgroups(&descriptors.cgroups)?;
    if let Some(netns) = &descriptors.netns {
        enter(netns, Namespaces::NET).step("enter the network namespace")?;
    }
    let wanted = match &order.role {
        RoleOrder::Sandbox { owner } => {
            Wanted { owner: *owner, first_id: order.first_id, with_net: descriptors.netns.is_none() }
        }
        // It does not enter the namespace, which only maps the ids of its files.
        RoleOrder::Zygote(_) => Wanted { owner: order.first_id, first_id: order.first_id, with_net: false },
    };
    let Namespace { user: user_namespace, net } = user_namespace::make(wanted)?;
    if let Some(netns) = net {
        enter(&netns, Namespaces::NET).step("enter the new network namespace")?;
        // The server configures it while the root is built.
        descriptors.channel.send(&Progress::Network, &[netns.as_fd()]).step("hand the network namespace over")?;
    }
    let memory = root::build(&descriptors.trees, order, &user_namespace)?;
    Ok(Made { user_namespace, memory })
}

fn join_cgroups(entrances: &[File]) -> Result<(), Failure> {
    for mut entrance in entrances {
        entrance.write_all(b"0").step("join a cgroup")?;
    }
    Ok(())
}

fn clone_init(
    order: &PrepareOrder,
    descriptors: &Descriptors,
    user_namespace: &OwnedFd,
    filter: &[Instruction],
) -> Result<(u32, OwnedFd), Failure> {
    if let RoleOrder::Zygote(program) = &order.role {
        return clone_zygote(order, program, descriptors);
    }
    enter(user_namespace, Namespaces::USER).step("enter the user namespace")?;
    let has_boot_clock = set_clocks(order.clocks)?;
    let namespaces =
        Namespaces::PID.and(Namespaces::MOUNT).and(Namespaces::IPC).and(Namespaces::UTS).and(Namespaces::CGROUP);
    match fork_into(namespaces).step("clone the first process")? {
        Fork::Child => {
            keep_only(&[descriptors.channel.socket(), descriptors.guest.as_fd()]);
            init::run(order, has_boot_clock, &descriptors.channel, &descriptors.guest, filter);
            exit_now(1)
        }
        Fork::Parent { pid, pidfd } => Ok((pid, pidfd)),
    }
}

/// Runs in the host's user and pid namespaces, because only from there can it enter sandboxes.
fn clone_zygote(
    order: &PrepareOrder,
    program: &ZygoteProgram,
    descriptors: &Descriptors,
) -> Result<(u32, OwnedFd), Failure> {
    let filter = zygote_filter();
    let namespaces = Namespaces::MOUNT.and(Namespaces::IPC).and(Namespaces::UTS).and(Namespaces::CGROUP);
    match fork_into(namespaces).step("clone the zygote")? {
        Fork::Child => {
            keep_only(&[descriptors.channel.socket()]);
            zygote::run(order, program, &descriptors.channel, &filter);
            exit_now(1)
        }
        Fork::Parent { pid, pidfd } => Ok((pid, pidfd)),
    }
}
