//! Starts the command, passes signals on to it, and keeps its view as it is until it ends.

use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::process::{Child, Command, ExitStatus};

use anyhow::Context;
use isopod_isolation::sys::signal::Signals;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};

use super::view::View;
use crate::env_names;

/// What others send to us and mean for the command. Stopping and going on concern us as well.
pub(super) const PASSED_ON: [Signal; 6] =
    [Signal::HUP, Signal::INT, Signal::QUIT, Signal::TERM, Signal::USR1, Signal::USR2];
/// How long a change of the view may go unnoticed that the kernel does not report.
const LOOK_AGAIN: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

pub(super) fn supervise(command: &[OsString], view: &View) -> anyhow::Result<ExitStatus> {
    let signals = Signals::take(&PASSED_ON.map(Signal::as_raw)).context("could not wait for signals")?;
    let changes = watch(view).context("could not watch the files of the resolver")?;
    let mut child = start(command, view.path()?).context("could not start the command")?;
    let pid = Pid::from_child(&child);
    let ended = pidfd_open(pid, PidfdFlags::empty()).context("could not wait for the command")?;
    loop {
        wait(&signals, &changes, &ended).context("could not wait for the command")?;
        if let Some(status) = child.try_wait().context("could not wait for the command")? {
            return Ok(status);
        }
        pass_on_signals(&signals, pid).context("could not pass on a signal")?;
        forget_events(&changes);
        view.ensure();
    }
}

fn start(command: &[OsString], path: Option<OsString>) -> io::Result<Child> {
    let mut starting = Command::new("/proc/self/exe");
    starting.arg("__env-exec").arg("--").args(command).env_remove(env_names::ENV_PLAN);
    starting.envs(path.map(|path| (env_names::PATH, path))).spawn()
}

fn watch(view: &View) -> io::Result<OwnedFd> {
    let changes = inotify::init(inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK)?;
    let flags = inotify::WatchFlags::CREATE | inotify::WatchFlags::MOVED_TO | inotify::WatchFlags::DELETE;
    for directory in view.watched() {
        inotify::add_watch(&changes, directory, flags)?;
    }
    Ok(changes)
}

fn wait(signals: &Signals, changes: &OwnedFd, ended: &OwnedFd) -> io::Result<()> {
    let mut waited =
        [PollFd::new(signals, PollFlags::IN), PollFd::new(changes, PollFlags::IN), PollFd::new(ended, PollFlags::IN)];
    match poll(&mut waited, Some(&LOOK_AGAIN)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// A key of the terminal reaches the command by itself.
fn pass_on_signals(signals: &Signals, pid: Pid) -> io::Result<()> {
    while let Some(received) = signals.next()? {
        let signal = Signal::from_named_raw(received.number).filter(|_| received.is_sent);
        // The command is our child and not reaped yet, so the pid is its own.
        match signal.map(|signal| kill_process(pid, signal)) {
            None | Some(Ok(()) | Err(rustix::io::Errno::PERM)) => {}
            Some(Err(error)) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Which file changed does not matter: all are looked at.
fn forget_events(changes: &OwnedFd) {
    let mut buffer = [0; 4096];
    while rustix::io::read(changes, &mut buffer).is_ok_and(|length| length > 0) {}
}
