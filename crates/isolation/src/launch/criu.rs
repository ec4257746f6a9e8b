//! Runs CRIU in a sandbox's namespaces, to save its processes or to restore them.
//!
//! A child of the spawner enters the namespaces and starts CRIU by descriptor, so nothing of it is in the sandbox. To save,
//! CRIU has the host's user namespace, because only there may it read and suspend system call filters. To restore, it
//! enters the sandbox's own, and has no right over the host.
//!
//! The file system that CRIU sees is the sandbox's. It must not run or trust anything there, so it gets no search path, and
//! our build of it reads no configuration, plugins or caches from there.

use std::ffi::CString;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::fs::{Mode, OFlags, open};
use rustix::process::{
    Pid, PidfdGetfdFlags, Signal, WaitId, WaitIdOptions, kill_process_group, pidfd_getfd, setpgid, waitid,
};
use serde::{Deserialize, Serialize};

use super::channel::Channel;
use super::init::raise_open_files;
use super::message::{SpawnerReply, SpawnerRequest};
use super::step::{Failure, Step};
use super::{LaunchError, Spawner, protocol_error};
use crate::sys::cred::{clear_groups, new_session_keyring, set_group_ids, set_user_ids};
use crate::sys::ns::{Namespaces, enter};
use crate::sys::process::{Fork, close_from_on_exec, exec_fd, exit_now, fork, move_fd_above, place_fd, reset_signals};

/// The number of the directory with the images. CRIU is told to find it at `/proc/self/fd/3`.
pub const IMAGES_FD: i32 = 3;
/// The number of the directory for CRIU's log.
pub const WORK_FD: i32 = 4;
/// The number of the first descriptor that restored processes get, in the order of [`CriuRequest::guest_fds`].
pub const FIRST_INHERITED_FD: i32 = 8;
/// Above all numbers that are placed.
const FREE_FDS: i32 = 1024;
/// How many descriptors of the guest a restore can hand over.
pub const MAX_GUEST_FDS: usize = (FREE_FDS - FIRST_INHERITED_FD) as usize;
/// The exit status of a child that could not become CRIU, which has its own.
const NOT_STARTED: i32 = 125;

/// Whether processes are saved or restored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CriuTask {
    /// As the host's root, outside of the sandbox's user namespace.
    Dump,
    /// As the sandbox's root, in all its namespaces and cgroups.
    Restore,
}

/// A run of CRIU.
#[derive(Debug)]
pub struct CriuRequest<'a> {
    pub task: CriuTask,
    /// CRIU's program, which must be static.
    pub program: BorrowedFd<'a>,
    /// The directory with the images. To restore, the sandbox's root must be able to read it.
    pub images: BorrowedFd<'a>,
    /// The directory for its log, in which it can write.
    pub work: BorrowedFd<'a>,
    /// The sandbox's first process, whose namespaces are entered.
    pub init: BorrowedFd<'a>,
    /// The namespaces of the first process: see [`super::namespaces_of`].
    pub namespaces: &'a [(&'static str, File)],
    /// `cgroup.procs` of each group that restored processes are in.
    pub cgroup_entrances: &'a [File],
    /// Descriptors of the first process that restored processes get, by their numbers there.
    pub guest_fds: &'a [i32],
    /// CRIU's arguments, without the name of the program.
    pub arguments: &'a [String],
    /// How long it may take.
    pub timeout: Duration,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct CriuOrder {
    task: CriuTask,
    namespaces: Vec<String>,
    cgroups: usize,
    guest_fds: Vec<i32>,
    arguments: Vec<String>,
}

/// From the child to the server.
#[derive(Debug, Serialize, Deserialize)]
enum CriuReply {
    Ended { succeeded: bool },
    Failed(Failure),
}

/// A running CRIU.
#[derive(Debug)]
pub struct RunningCriu {
    channel: Channel,
}

impl RunningCriu {
    /// Waits for its end. Returns false if it failed, for reasons that its log has.
    pub fn wait(self) -> Result<bool, LaunchError> {
        let in_words = |source: io::Error| match source.kind() {
            io::ErrorKind::WouldBlock => io::Error::new(io::ErrorKind::TimedOut, "it did not finish in time"),
            _ => source,
        };
        let received = self.channel.receive::<CriuReply>().map_err(in_words);
        match received.map_err(LaunchError::channel("checkpointer"))?.0 {
            CriuReply::Ended { succeeded } => Ok(succeeded),
            CriuReply::Failed(failure) => Err(failure.into()),
        }
    }
}

impl Spawner {
    /// Starts CRIU.
    pub fn run_criu(&self, request: &CriuRequest<'_>) -> Result<RunningCriu, LaunchError> {
        let (ours, theirs) = isopod_channel::pair().map_err(LaunchError::channel("checkpointer"))?;
        let channel = Channel::with_timeout(ours, request.timeout).map_err(LaunchError::channel("checkpointer"))?;
        let entered = |name: &str| request.task == CriuTask::Restore || !matches!(name, "user" | "time");
        let namespaces: Vec<_> = request.namespaces.iter().filter(|(name, _)| entered(name)).collect();
        let order = CriuOrder {
            task: request.task,
            namespaces: namespaces.iter().map(|(name, _)| (*name).to_owned()).collect(),
            cgroups: request.cgroup_entrances.len(),
            guest_fds: request.guest_fds.to_vec(),
            arguments: request.arguments.to_vec(),
        };
        let mut fds = vec![theirs.as_fd(), request.program, request.images, request.work, request.init];
        fds.extend(namespaces.iter().map(|(_, file)| file.as_fd()));
        fds.extend(request.cgroup_entrances.iter().map(AsFd::as_fd));
        match self.ask(&SpawnerRequest::Criu(order), &fds)? {
            SpawnerReply::Started { .. } => Ok(RunningCriu { channel }),
            SpawnerReply::Failed(failure) => Err(failure.into()),
            SpawnerReply::Hello { .. } => Err(protocol_error()),
        }
    }
}

/// The descriptors of the order, without the channel.
struct Descriptors {
    program: OwnedFd,
    images: OwnedFd,
    work: OwnedFd,
    init: OwnedFd,
    namespaces: Vec<OwnedFd>,
    cgroups: Vec<File>,
}

/// Runs the child.
pub(super) fn run(order: &CriuOrder, fds: Vec<OwnedFd>) {
    let mut fds = fds.into_iter();
    let Some(channel) = fds.next().map(Channel::new) else { return };
    // A shell's limit is 1024, which leaves no number for what is out of the way.
    raise_open_files();
    let run = sort_fds(order, fds).and_then(|descriptors| run_steps(order, &descriptors));
    let reply = match run {
        Ok(succeeded) => CriuReply::Ended { succeeded },
        Err(failure) => CriuReply::Failed(failure),
    };
    // If the server is gone, it needs no reply: the next one looks at what there is.
    let _ = channel.send(&reply, &[]);
}

fn sort_fds(order: &CriuOrder, fds: impl Iterator<Item = OwnedFd>) -> Result<Descriptors, Failure> {
    // Out of the way of the numbers that are placed.
    let moved = fds.map(|fd| move_fd_above(fd, FREE_FDS)).collect::<io::Result<Vec<_>>>();
    let mut fds = moved.step("move a descriptor; the limit of open files may be too low")?.into_iter();
    let mut next = || fds.next().ok_or(rustix::io::Errno::BADF).step("find a descriptor");
    Ok(Descriptors {
        program: next()?,
        images: next()?,
        work: next()?,
        init: next()?,
        namespaces: fds.by_ref().take(order.namespaces.len()).collect(),
        cgroups: fds.by_ref().take(order.cgroups).map(File::from).collect(),
    })
}

fn run_steps(order: &CriuOrder, descriptors: &Descriptors) -> Result<bool, Failure> {
    // The spawner lets the kernel reap its children. This process waits for its own.
    reset_signals().step("reset signals")?;
    let inherited = take_guest_fds(&descriptors.init, &order.guest_fds)?;
    enter_all(order, &descriptors.namespaces)?;
    if order.task == CriuTask::Restore {
        become_root_of_the_sandbox()?;
        // Restored processes have the one of CRIU, and must not share the spawner's.
        new_session_keyring().step("start a keyring")?;
    }
    match run_child(order, descriptors, &inherited).step("wait for CRIU")? {
        Some(NOT_STARTED) => Err(rustix::io::Errno::NOEXEC).step("start CRIU"),
        status => Ok(status == Some(0)),
    }
}

/// Copies descriptors of the guest, which is not trusted: a wrong number is an error here, and what a right one leads to is
/// only passed on, into the same sandbox.
fn take_guest_fds(init: &OwnedFd, numbers: &[i32]) -> Result<Vec<OwnedFd>, Failure> {
    let take = |number: &i32| {
        let taken = pidfd_getfd(init, *number, PidfdGetfdFlags::empty()).step("take a descriptor of the guest")?;
        move_fd_above(taken, FREE_FDS).step("move a descriptor of the guest")
    };
    numbers.iter().map(take).collect()
}

fn enter_all(order: &CriuOrder, namespaces: &[OwnedFd]) -> Result<(), Failure> {
    for (name, namespace) in order.namespaces.iter().zip(namespaces) {
        let kind = namespace_kind(name).ok_or(rustix::io::Errno::INVAL).step("find a kind of namespace")?;
        enter(namespace, kind).step(&format!("enter the {name} namespace"))?;
    }
    Ok(())
}

fn namespace_kind(name: &str) -> Option<Namespaces> {
    Some(match name {
        "user" => Namespaces::USER,
        "mnt" => Namespaces::MOUNT,
        "pid" => Namespaces::PID,
        "net" => Namespaces::NET,
        "ipc" => Namespaces::IPC,
        "uts" => Namespaces::UTS,
        "cgroup" => Namespaces::CGROUP,
        "time" => Namespaces::TIME,
        _ => return None,
    })
}

fn become_root_of_the_sandbox() -> Result<(), Failure> {
    set_group_ids(Some(0), Some(0), Some(0)).step("become the sandbox's root group")?;
    clear_groups().step("leave the host's groups")?;
    set_user_ids(Some(0), Some(0), Some(0)).step("become the sandbox's root")
}

/// Runs CRIU in a child, which is in the sandbox's pid namespace. Returns its exit status if it has one.
fn run_child(order: &CriuOrder, descriptors: &Descriptors, inherited: &[OwnedFd]) -> io::Result<Option<i32>> {
    match fork()? {
        Fork::Child => {
            // Fails only for the leader of a session, which a new process is not.
            let _ = setpgid(None, None);
            let Err(_) = become_criu(order, descriptors, inherited);
            exit_now(NOT_STARTED)
        }
        Fork::Parent { pid, pidfd } => {
            // Until it is reaped, nobody else gets its number.
            waitid(WaitId::PidFd(pidfd.as_fd()), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT)?;
            if order.task == CriuTask::Dump {
                end_helpers(pid);
            }
            let status = waitid(WaitId::PidFd(pidfd.as_fd()), WaitIdOptions::EXITED)?;
            Ok(status.and_then(|status| status.exit_status()))
        }
    }
}

/// Ends processes that CRIU has started and not waited for, as when it was killed. They have the host's rights, and the guest
/// would become their parent.
fn end_helpers(criu: u32) {
    if let Some(group) = Pid::from_raw(criu.cast_signed()) {
        // There may be none.
        let _ = kill_process_group(group, Signal::KILL);
    }
}

fn become_criu(
    order: &CriuOrder,
    descriptors: &Descriptors,
    inherited: &[OwnedFd],
) -> Result<std::convert::Infallible, Failure> {
    // Not earlier: what is in the sandbox's cgroups and is not of the sandbox would look like one of its processes.
    for mut entrance in &descriptors.cgroups {
        entrance.write_all(b"0").step("join a cgroup")?;
    }
    let null = open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).step("open /dev/null")?;
    for number in 0..=2 {
        place_fd(&null, number).step("place stdio")?;
    }
    place_fd(&descriptors.images, IMAGES_FD).step("place the images")?;
    place_fd(&descriptors.work, WORK_FD).step("place the directory of the log")?;
    close_from_on_exec(WORK_FD + 1).step("close what CRIU does not need")?;
    for (number, fd) in (FIRST_INHERITED_FD..).zip(inherited) {
        place_fd(fd, number).step("place a descriptor of the guest")?;
    }
    let name = CString::from(c"criu");
    let arguments = order.arguments.iter().filter_map(|text| CString::new(text.as_str()).ok());
    let arguments: Vec<CString> = std::iter::once(name).chain(arguments).collect();
    // Not an empty one, which would mean the current directory.
    let environment = [CString::from(c"PATH=/dev/null")];
    Err(exec_fd(&descriptors.program, &arguments, &environment)).step("start CRIU")
}
