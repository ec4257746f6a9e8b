//! Creates the user namespace of a sandbox.
//!
//! The kernel counts inotify instances and watches, message queues, queued signals and locked memory against the
//! *owner* of a user namespace. The owner is the first id of the sandbox's own range, so that sandboxes cannot exhaust
//! each other's limits.
//!
//! A zygote can enter only namespaces that its own user owns. Its sandboxes get two, one in the other:
//!
//! ```text
//! the host ─▶ outer, owned by the zygote's user ─▶ inner, owned by the sandbox's first id: the sandbox's own
//! ```
//!
//! The owner of the outer one may enter the inner one too. The sandbox's usage is counted in the outer one first, whose
//! limits are the sandbox's own, and only then against the zygote's user, whose limits are far higher.

use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{Mode, OFlags, fstatfs, open, openat};
use rustix::mount::{UnmountFlags, unmount};
use rustix::process::{Resource, Rlimit, Signal, getrlimit, pidfd_send_signal, setrlimit};
use serde::{Deserialize, Serialize};

use super::channel::Channel;
use super::root::leave_mount_namespace;
use super::step::{Failure, Step};
use crate::sys::cred::{is_dumpable, set_group_ids, set_user_ids};
use crate::sys::ns::{Namespaces, enter};
use crate::sys::process::{Fork, close_all_but, exit_now, fork, hold, hold_as_root};

/// The number of ids in a sandbox's range.
const RANGE: u32 = 65_536;
const PROC: &str = "/proc";
const PROC_SUPER_MAGIC: i64 = 0x9fa0;

/// The limits of one sandbox of a zygote for what the kernel counts per user: the kernel's own default for a user, and
/// as many watches as a large source tree needs.
const CAPS: &[(&str, u64)] = &[("max_inotify_instances", 128), ("max_inotify_watches", 524_288)];

/// Resources that the kernel counts per user and limits by the rlimits of the process that creates the namespace. The
/// outer namespace gets as much as the host allows, the inner one a part of it: the default of one user. If the host
/// does not let us raise the total, the part is so small that only very many sandboxes can exhaust it.
const SHARED: &[(Resource, u64)] =
    &[(Resource::Msgqueue, 819_200), (Resource::Sigpending, 16_384), (Resource::Memlock, 8 << 20)];
/// The divisor for a limit that cannot be raised.
const SMALL_PART: u64 = 64;

/// The namespace to create.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted {
    /// The host id that must be able to enter.
    pub(super) owner: u32,
    /// The first host id of the sandbox's range.
    pub(super) first_id: u32,
    /// Whether to create a network namespace that belongs to it.
    pub(super) with_net: bool,
}

/// A user namespace that maps the sandbox's range.
#[derive(Debug)]
pub(super) struct Namespace {
    pub(super) user: OwnedFd,
    pub(super) net: Option<OwnedFd>,
}

/// Creates it. The caller is the host's root, before and after.
pub(super) fn make(wanted: Wanted) -> Result<Namespace, Failure> {
    if wanted.owner == wanted.first_id {
        return make_owned(wanted);
    }
    let limits = raise_limits();
    let outer = make_owned(Wanted { with_net: false, ..wanted });
    restore_limits(&limits);
    make_within(&outer?.user, wanted.with_net, &limits)
}

/// A limit that was raised for the outer namespace.
#[derive(Clone, Copy, Debug)]
struct Raised {
    resource: Resource,
    before: Rlimit,
    /// The limit of the inner namespace.
    part: u64,
}

/// Raises limits as far as the host allows. Without CAP_SYS_RESOURCE, that is the hard limit.
fn raise_limits() -> Vec<Raised> {
    let raise = |(resource, default): &(Resource, u64)| {
        let before = getrlimit(*resource);
        let unlimited = Rlimit { current: None, maximum: None };
        let part = match setrlimit(*resource, unlimited) {
            Ok(()) => *default,
            Err(_) => {
                // Only lowers a limit or leaves it, which is always allowed.
                let _ = setrlimit(*resource, Rlimit { current: before.maximum, ..before });
                small_part(before.maximum, *default)
            }
        };
        Raised { resource: *resource, before, part }
    };
    SHARED.iter().map(raise).collect()
}

/// Returns the part of one sandbox if a limit cannot be raised. It is never more than the default.
fn small_part(most: Option<u64>, default: u64) -> u64 {
    most.map_or(default, |most| (most / SMALL_PART).min(default))
}

fn restore_limits(limits: &[Raised]) {
    for limit in limits {
        // Restoring the old value is always allowed.
        let _ = setrlimit(limit.resource, limit.before);
    }
}

/// The kernel takes the limits of a new user namespace from the rlimits of the process that creates it.
fn give_parts(limits: &[Raised]) -> rustix::io::Result<()> {
    limits.iter().try_for_each(|limit| setrlimit(limit.resource, Rlimit { current: Some(limit.part), ..limit.before }))
}

/// Creates one namespace, whose owner is never the host's root.
fn make_owned(wanted: Wanted) -> Result<Namespace, Failure> {
    set_group_ids(None, Some(wanted.owner), None).step("take the group of the owner")?;
    set_user_ids(None, Some(wanted.owner), None).step("take the user of the owner")?;
    let held = hold(namespaces(wanted.with_net)).step("make a user namespace");
    take_back_root()?;
    let (pid, pidfd) = held?;
    let made = open_proc()
        .and_then(|proc| map_ids(&proc, pid, wanted.first_id))
        .and_then(|()| open_namespaces(pid, wanted.with_net));
    pidfd_send_signal(&pidfd, Signal::KILL).step("end the holder of the user namespace")?;
    made
}

fn namespaces(with_net: bool) -> Namespaces {
    if with_net { Namespaces::USER.and(Namespaces::NET) } else { Namespaces::USER }
}

fn take_back_root() -> Result<(), Failure> {
    set_user_ids(None, Some(0), None).step("take back root")?;
    set_group_ids(None, Some(0), None).step("take back root's group")
}

fn map_ids(proc: &OwnedFd, pid: u32, first_id: u32) -> Result<(), Failure> {
    for file in ["uid_map", "gid_map"] {
        let mut map = File::from(open_in(proc, &format!("{pid}/{file}")).step("open the id map")?);
        check_is_procfs(&map)?;
        map.write_all(format!("0 {first_id} {RANGE}").as_bytes()).step("write the id map")?;
    }
    Ok(())
}

fn open_proc() -> Result<OwnedFd, Failure> {
    open(PROC, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).step("open /proc")
}

fn open_in(proc: &OwnedFd, path: &str) -> rustix::io::Result<OwnedFd> {
    openat(proc, path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())
}

fn open_namespaces(pid: u32, with_net: bool) -> Result<Namespace, Failure> {
    let open = |name: &str| {
        open(format!("/proc/{pid}/ns/{name}"), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).step("open a namespace")
    };
    Ok(Namespace { user: open("user")?, net: with_net.then(|| open("net")).transpose()? })
}

/// If /proc were another file system, the write would leave the sandbox without its map.
fn check_is_procfs(file: &File) -> Result<(), Failure> {
    let found = fstatfs(file).step("look at /proc")?.f_type;
    if found == PROC_SUPER_MAGIC {
        return Ok(());
    }
    Err(rustix::io::Errno::XDEV).step("write to procfs, because /proc is something else")
}

/// A message of the helper.
#[derive(Debug, Serialize, Deserialize)]
enum HelperReply {
    /// This process is in the inner namespace.
    Held(u32),
    Failed(Failure),
}

/// Creates a namespace inside another one. Only a process in the outer one may map the ids of the inner one, and it
/// cannot come back. Therefore a helper does it.
fn make_within(outer: &OwnedFd, with_net: bool, limits: &[Raised]) -> Result<Namespace, Failure> {
    let helper = Helper::start(outer, with_net, limits)?;
    open_namespaces(helper.holder, with_net)
}

/// The helper and the process that holds the inner namespace. Both end when this is dropped.
///
/// The owner of the outer namespace has all rights over processes in it, and a zygote runs its template's code. These
/// processes are protected because they are not dumpable: the kernel then requires rights over the namespace in which
/// their program was started, which is the host's. Should that ever fail, they hold no descriptor of the launcher, and
/// see no file.
#[derive(Debug)]
struct Helper {
    /// Closing it ends the helper.
    _channel: Channel,
    /// The process in the inner namespace.
    holder: u32,
    #[cfg(test)]
    pid: u32,
}

impl Helper {
    fn start(outer: &OwnedFd, with_net: bool, limits: &[Raised]) -> Result<Self, Failure> {
        let (ours, theirs) = isopod_channel::pair().step("talk to the maker of the inner user namespace")?;
        let _pid = match fork().step("fork the maker of the inner user namespace")? {
            Fork::Child => {
                help(&Channel::new(theirs), outer, with_net, limits);
                exit_now(0)
            }
            Fork::Parent { pid, .. } => pid,
        };
        drop(theirs);
        let channel = Channel::new(ours);
        match channel.receive::<HelperReply>().step("hear from the maker of the inner user namespace")?.0 {
            HelperReply::Held(holder) => Ok(Self {
                _channel: channel,
                holder,
                #[cfg(test)]
                pid: _pid,
            }),
            HelperReply::Failed(failure) => Err(failure),
        }
    }
}

/// Runs the helper until the channel closes.
fn help(channel: &Channel, outer: &OwnedFd, with_net: bool, limits: &[Raised]) {
    let (word, holder) = match hold_inner(channel, outer, with_net, limits) {
        Ok((pid, pidfd)) => (HelperReply::Held(pid), Some(pidfd)),
        Err(failure) => (HelperReply::Failed(failure), None),
    };
    if channel.send(&word, &[]).is_ok() {
        // Nothing is ever sent. This waits for the end of the channel.
        let _ = channel.receive::<HelperReply>();
    }
    if let Some(holder) = holder {
        // It is already gone, or ends now.
        let _ = pidfd_send_signal(&holder, Signal::KILL);
    }
}

fn hold_inner(
    channel: &Channel,
    outer: &OwnedFd,
    with_net: bool,
    limits: &[Raised],
) -> Result<(u32, OwnedFd), Failure> {
    let proc = open_proc()?;
    close_all_but(&[channel.socket(), outer.as_fd(), proc.as_fd()]).step("close what the launcher holds")?;
    leave_files()?;
    enter(outer, Namespaces::USER).step("enter the outer user namespace")?;
    refuse_to_be_dumpable()?;
    for (name, most) in CAPS {
        let mut setting =
            File::from(open_in(&proc, &format!("sys/user/{name}")).step("open a cap of the outer user namespace")?);
        check_is_procfs(&setting)?;
        setting.write_all(most.to_string().as_bytes()).step("set a cap of the outer user namespace")?;
    }
    give_parts(limits).step("limit the inner user namespace")?;
    // The owner of the inner namespace must be an id of the outer one. The helper itself keeps the id of the host's
    // root, but without any rights outside of the outer namespace: the id maps of a holder that is not dumpable belong
    // to it.
    let (pid, pidfd) = hold_as_root(namespaces(with_net)).step("make the inner user namespace")?;
    let mapped = map_ids(&proc, pid, 0);
    drop(proc);
    let kept = [channel.socket(), pidfd.as_fd()];
    match mapped.and_then(|()| close_all_but(&kept).step("close the outer user namespace")) {
        Ok(()) => Ok((pid, pidfd)),
        Err(failure) => {
            let _ = pidfd_send_signal(&pidfd, Signal::KILL);
            Err(failure)
        }
    }
}

/// Moves to a root without `/proc`. A chroot is not enough, because the kernel lets no process in one create user
/// namespaces.
fn leave_files() -> Result<(), Failure> {
    leave_mount_namespace()?;
    unmount(PROC, UnmountFlags::DETACH).step("detach /proc")
}

/// Changing the namespace has just cleared the dumpable flag, unless `fs.suid_dumpable` says otherwise. Then the owner
/// of the outer namespace could take over the helper.
fn refuse_to_be_dumpable() -> Result<(), Failure> {
    if is_dumpable().step("ask whether the maker of the inner user namespace is dumpable")? {
        return Err(rustix::io::Errno::PERM).step("enter a user namespace unseen, because fs.suid_dumpable is 1");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::fd::RawFd;

    use rustix::io::Errno;
    use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};

    use super::*;
    use crate::alone::alone;
    use crate::capabilities::drop_all;
    use crate::sys::cred::Capabilities;

    /// Ids that nothing else uses: a zygote's user, and the first of a sandbox's range.
    const ZYGOTE: u32 = 1_999_999_999;
    const FIRST_ID: u32 = 1_900_000_000;
    fn helper() -> (Helper, Namespace) {
        let limits = raise_limits();
        let outer = make_owned(Wanted { owner: ZYGOTE, first_id: FIRST_ID, with_net: false }).expect("an outer one");
        restore_limits(&limits);
        (Helper::start(&outer.user, true, &limits).expect("a helper"), outer)
    }

    fn descriptors(pid: u32) -> Vec<String> {
        let entries = fs::read_dir(format!("/proc/{pid}/fd")).expect("a process of ours").flatten();
        let links = entries.filter_map(|entry| fs::read_link(entry.path()).ok());
        links.map(|link| link.to_string_lossy().split(['[', ':']).next().unwrap_or_default().to_owned()).collect()
    }

    #[test]
    fn the_helper_and_the_holder_hold_nothing_of_the_launchers() {
        alone("launch::user_namespace::tests::the_helper_and_the_holder_hold_nothing_of_the_launchers", || {
            let secret = File::open("/proc/self/ns/mnt").expect("a namespace");
            let (helper, _outer) = helper();
            let mut held = descriptors(helper.pid);
            held.sort();
            // The pidfd of the holder, and the channel.
            assert_eq!(held, ["anon_inode", "socket"]);
            assert_eq!(descriptors(helper.holder), [""; 0]);
            let mounts = fs::read_to_string(format!("/proc/{}/mountinfo", helper.pid)).expect("a helper");
            assert!(!mounts.lines().any(|line| line.split(' ').nth(4) == Some("/proc")), "{mounts}");
            drop(secret);
        });
    }

    #[test]
    fn the_owner_of_the_outer_namespace_takes_nothing_from_its_helper() {
        alone("launch::user_namespace::tests::the_owner_of_the_outer_namespace_takes_nothing_from_its_helper", || {
            let (helper, _outer) = helper();
            let (ours, theirs) = isopod_channel::pair().expect("a channel");
            let theirs = Channel::new(theirs);
            let Fork::Parent { .. } = fork().expect("a fork") else {
                let taken: Result<Vec<_>, Failure> = become_zygote().map(|()| {
                    [helper.pid, helper.holder]
                        .into_iter()
                        .flat_map(|pid| (0..64).map(move |fd| take(pid, fd)))
                        .collect()
                });
                let _ = theirs.send(&taken, &[]);
                exit_now(0)
            };
            drop(theirs);
            let (taken, _) = Channel::new(ours).receive::<Result<Vec<i32>, Failure>>().expect("a word");
            assert_eq!(taken.expect("a zygote"), [Errno::PERM.raw_os_error(); 128]);
        });
    }

    fn become_zygote() -> Result<(), Failure> {
        set_group_ids(Some(ZYGOTE), Some(ZYGOTE), Some(ZYGOTE)).step("take a group")?;
        set_user_ids(Some(ZYGOTE), Some(ZYGOTE), Some(ZYGOTE)).step("take a user")?;
        drop_all().step("drop capabilities")
    }

    /// Returns the error, or zero if a descriptor was taken.
    fn take(pid: u32, fd: RawFd) -> i32 {
        let pid = Pid::from_raw(pid.cast_signed()).expect("a pid");
        let process = match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(process) => process,
            Err(error) => return error.raw_os_error(),
        };
        match pidfd_getfd(&process, fd, PidfdGetfdFlags::empty()) {
            Ok(_) => 0,
            Err(error) => error.raw_os_error(),
        }
    }

    #[test]
    fn both_namespaces_have_their_owners_and_their_maps() {
        alone("launch::user_namespace::tests::both_namespaces_have_their_owners_and_their_maps", || {
            let (helper, _outer) = helper();
            let status = fs::read_to_string(format!("/proc/{}/uid_map", helper.holder)).expect("a holder");
            assert_eq!(status.split_whitespace().collect::<Vec<_>>(), ["0", "1900000000", "65536"]);
            let made = open_namespaces(helper.holder, true).expect("its namespaces");
            assert!(made.net.is_some());
        });
    }

    /// As on a host, often a container, whose root cannot raise limits.
    fn give_up_raising_limits() {
        const SYS_RESOURCE: u64 = 1 << 24;
        let mut kept = Capabilities::current().expect("capabilities");
        kept.effective &= !SYS_RESOURCE;
        kept.permitted &= !SYS_RESOURCE;
        kept.inheritable &= !SYS_RESOURCE;
        kept.apply().expect("less can always be had");
    }

    fn soft_limit(pid: u32, name: &str) -> Option<u64> {
        let limits = fs::read_to_string(format!("/proc/{pid}/limits")).expect("a process of ours");
        limits.lines().find_map(|line| line.strip_prefix(name)?.split_whitespace().next()?.parse().ok())
    }

    #[test]
    fn where_limits_cannot_be_raised_a_sandbox_gets_a_small_part() {
        alone("launch::user_namespace::tests::where_limits_cannot_be_raised_a_sandbox_gets_a_small_part", || {
            let host = [640_000, 6_400, 4 << 20];
            for ((resource, _), most) in SHARED.iter().zip(host) {
                setrlimit(*resource, Rlimit { current: Some(most), maximum: Some(most) }).expect("lower limits");
            }
            give_up_raising_limits();
            let limits = raise_limits();
            let parts: Vec<u64> = limits.iter().map(|limit| limit.part).collect();
            assert_eq!(parts, host.map(|most| most / SMALL_PART));
            restore_limits(&limits);

            let (helper, _outer) = helper();
            for (name, part) in
                [("Max msgqueue size", 10_000), ("Max pending signals", 100), ("Max locked memory", 64 << 10)]
            {
                assert_eq!(soft_limit(helper.holder, name), Some(part), "{name}");
                assert_eq!(
                    soft_limit(std::process::id(), name),
                    Some(part * SMALL_PART),
                    "{name}: ours is what it was"
                );
            }
        });
    }

    #[test]
    fn a_part_is_never_more_than_the_default() {
        let parts = [None, Some(64), Some(6_400), Some(64_000)].map(|most| small_part(most, 100));
        assert_eq!(parts, [100, 1, 100, 100]);
    }
}
