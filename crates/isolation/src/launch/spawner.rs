//! The spawner: a single-threaded process that starts launchers and is the parent of all sandboxes.
//!
//! It does not die with the server that started it. The next server finds it at the same socket. It holds no important
//! state: if it is killed, the host's init adopts the sandboxes, and they keep running.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use isopod_wire::KernelFeatures;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{SocketFlags, accept_with};
use rustix::process::{WaitOptions, chdir, setsid, wait};

use super::channel::Channel;
use super::criu::{self, CriuOrder};
use super::launcher;
use super::message::{PrepareOrder, SpawnerReply, SpawnerRequest, VERSION};
use super::root::{enter_spawner_root, host_mounts};
use super::step::{Failure, Step};
use super::workspace::{self, WorkspaceOrder};
use crate::seccomp::sandbox_filter;
use crate::sys::cred::become_subreaper;
use crate::sys::ns::{Namespaces, enter};
use crate::sys::process::{Fork, close_all_but, exec_fd, exit_now, fork, ignore_signals, move_fd_above, place_fd};
use crate::sys::seccomp::Instruction;

/// What a spawner does without a server.
#[derive(Debug, Default)]
pub struct SpawnerOptions {
    /// The program and arguments to execute when the server's connection ends. Without it, the spawner waits for the
    /// next server.
    pub when_orphaned: Option<Vec<CString>>,
}

/// How often a spawner without a server checks whether it still has sandboxes.
const IDLE_SECONDS: i64 = 5;

const STDIN: i32 = 0;
/// Above the standard streams.
const FIRST_FREE: i32 = 3;

/// Serves requests on a listening sequenced-packet socket until it is not needed any more.
pub fn run_spawner(listener: OwnedFd, options: &SpawnerOptions) -> io::Result<()> {
    // The parent passes the listener as standard input, which every child would inherit.
    let listener = move_fd_above(listener, FIRST_FREE)?;
    place_fd(File::options().read(true).write(true).open("/dev/null")?, STDIN)?;
    // A new session, so that signals of a terminal do not reach it. Fails if the process already leads one.
    let _ = setsid();
    chdir("/")?;
    become_subreaper()?;
    ignore_signals()?;
    let host = host_mounts()?;
    enter_spawner_root().map_err(|failure| io::Error::from_raw_os_error(failure.errno))?;
    // Built once. Launchers inherit it, and most need no other.
    let filter = sandbox_filter(KernelFeatures::default());

    let mut channels: Vec<Channel> = Vec::new();
    let mut had_server = false;
    loop {
        let ready = wait_for_work(&listener, &channels)?;
        // In reverse order, so that removing one does not move the others.
        for index in ready.into_iter().rev() {
            match index.checked_sub(1) {
                None => {
                    let socket = accept_with(&listener, SocketFlags::CLOEXEC)?;
                    channels.push(Channel::new(socket));
                    had_server = true;
                }
                Some(index) if serve(&channels[index], &filter).is_err() => drop(channels.swap_remove(index)),
                Some(_) => {}
            }
        }
        if !had_server || !channels.is_empty() {
            continue;
        }
        if let Some(arguments) = &options.when_orphaned {
            enter(&host, Namespaces::MOUNT)?;
            return Err(become_program(arguments));
        }
        if !has_children() {
            return Ok(());
        }
    }
}

/// Returns the indexes of what is readable: 0 for the listener, then the channels.
fn wait_for_work(listener: &OwnedFd, channels: &[Channel]) -> io::Result<Vec<usize>> {
    let sockets = std::iter::once(listener.as_fd()).chain(channels.iter().map(Channel::socket));
    let mut fds: Vec<PollFd<'_>> = sockets.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
    let idle = Timespec { tv_sec: IDLE_SECONDS, tv_nsec: 0 };
    match poll(&mut fds, channels.is_empty().then_some(&idle)) {
        Ok(_) | Err(Errno::INTR) => {}
        Err(error) => return Err(error.into()),
    }
    Ok(fds.iter().enumerate().filter(|(_, fd)| !fd.revents().is_empty()).map(|(index, _)| index).collect())
}

fn has_children() -> bool {
    !matches!(wait(WaitOptions::NOHANG), Err(Errno::CHILD))
}

fn become_program(arguments: &[CString]) -> io::Error {
    let open = |program: &CString| File::open(std::path::Path::new(&*program.to_string_lossy()));
    match arguments.first().map(open) {
        Some(Ok(program)) => exec_fd(program, arguments, &[]),
        Some(Err(error)) => error,
        None => io::ErrorKind::InvalidInput.into(),
    }
}

/// Answers one request. An error closes the connection.
fn serve(channel: &Channel, filter: &[Instruction]) -> io::Result<()> {
    let (request, fds) = channel.receive::<SpawnerRequest>()?;
    let reply = match request {
        SpawnerRequest::Hello { .. } => SpawnerReply::Hello { version: VERSION },
        SpawnerRequest::Prepare(order) => match start_launcher(*order, fds, filter) {
            Ok(pid) => SpawnerReply::Started { pid },
            Err(failure) => SpawnerReply::Failed(failure),
        },
        SpawnerRequest::Workspace(order) => match start_mounter(&order, fds) {
            Ok(pid) => SpawnerReply::Started { pid },
            Err(failure) => SpawnerReply::Failed(failure),
        },
        SpawnerRequest::Criu(order) => match start_checkpointer(&order, fds) {
            Ok(pid) => SpawnerReply::Started { pid },
            Err(failure) => SpawnerReply::Failed(failure),
        },
    };
    channel.send(&reply, &[])
}

fn start_mounter(order: &WorkspaceOrder, fds: Vec<OwnedFd>) -> Result<u32, Failure> {
    match fork().step("fork a mounter")? {
        Fork::Parent { pid, .. } => Ok(pid),
        Fork::Child => {
            keep_only(&fds.iter().map(AsFd::as_fd).collect::<Vec<_>>());
            workspace::run(order, fds);
            exit_now(0)
        }
    }
}

fn start_checkpointer(order: &CriuOrder, fds: Vec<OwnedFd>) -> Result<u32, Failure> {
    match fork().step("fork a checkpointer")? {
        Fork::Parent { pid, .. } => Ok(pid),
        Fork::Child => {
            keep_only(&fds.iter().map(AsFd::as_fd).collect::<Vec<_>>());
            criu::run(order, fds);
            exit_now(0)
        }
    }
}

fn start_launcher(order: PrepareOrder, fds: Vec<OwnedFd>, filter: &[Instruction]) -> Result<u32, Failure> {
    match fork().step("fork a launcher")? {
        Fork::Parent { pid, .. } => Ok(pid),
        Fork::Child => {
            keep_only(&fds.iter().map(AsFd::as_fd).collect::<Vec<_>>());
            launcher::run(&order, fds, filter);
            exit_now(0)
        }
    }
}

/// The first step of a new process: closes the descriptors of its parent, such as the spawner's sockets and its
/// descriptor of the host's mounts, because the process enters a sandbox's namespaces. The standard streams stay, which
/// are `/dev/null` and the log.
pub(super) fn keep_only(fds: &[BorrowedFd<'_>]) {
    let (stdin, stdout, stderr) = (io::stdin(), io::stdout(), io::stderr());
    let streams = [stdin.as_fd(), stdout.as_fd(), stderr.as_fd()];
    let kept: Vec<_> = streams.into_iter().chain(fds.iter().copied()).collect();
    if close_all_but(&kept).is_err() {
        exit_now(1)
    }
}
