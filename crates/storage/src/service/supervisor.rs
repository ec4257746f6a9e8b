//! The supervisor: a single-threaded process that holds a copy of every connection and restarts a daemon that died.
//!
//! As long as a process holds a connection, the kernel lets pending calls wait instead of failing them. The supervisor
//! does nothing else, so there is little that could make it die. If it does die, the daemon starts another supervisor
//! (`supervision`), which follows that daemon until its end and then starts daemons of its own.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use isopod_channel::pair;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Signal, pidfd_send_signal};

use super::channel::Channel;
use super::message::{Inheritance, KeptMount, StorageSettings, ToSupervisor};

const MIN_PAUSE: Duration = Duration::from_millis(50);
const MAX_PAUSE: Duration = Duration::from_secs(5);
/// A daemon that lived this long did not die of its initial state.
const STABLE_AFTER: Duration = Duration::from_secs(10);

/// The state that the next daemon starts with.
#[derive(Debug, Default)]
struct Supervisor {
    settings: Option<StorageSettings>,
    mounts: BTreeMap<String, (KeptMount, Vec<OwnedFd>)>,
    /// A running daemon that we did not start.
    worker: Option<OwnedFd>,
    /// Whether that daemon has sent everything.
    is_told: bool,
}

/// Keeps a daemon running on a listening socket until it ends on purpose. `program` with `arguments` becomes the
/// daemon. The socket is its standard input, and the connection to us is its standard output. `running` is the
/// connection to a running daemon that has lost its supervisor.
pub fn run_supervisor(
    listener: &OwnedFd,
    program: &Path,
    arguments: &[&str],
    running: Option<OwnedFd>,
) -> io::Result<()> {
    // Detach from the terminal, so that its signals do not reach us. This fails if we already lead a session.
    let _ = rustix::process::setsid();
    rustix::process::chdir("/")?;
    supervise(listener, program, arguments, running)
}

fn supervise(listener: &OwnedFd, program: &Path, arguments: &[&str], running: Option<OwnedFd>) -> io::Result<()> {
    let mut supervisor = Supervisor::default();
    let mut pause = MIN_PAUSE;
    if let Some(running) = running {
        if supervisor.follow(&Channel::new(running)) {
            return Ok(());
        }
        if let Some(worker) = supervisor.worker.take() {
            end_worker(&worker);
        }
        // A daemon that died before it had sent everything leaves only a part of its mounts, and a new daemon that
        // knows only those would look as if it had them all. Without any daemon, the next client starts a fresh one.
        if !supervisor.is_told {
            tracing::warn!("the daemon died before it had sent its mounts to the new supervisor; they are lost");
            return Ok(());
        }
        tracing::warn!(mounts = supervisor.mounts.len(), "the daemon died; restarting it");
    }
    loop {
        let started = Instant::now();
        match supervisor.run_daemon(listener, program, arguments) {
            Ok(true) => return Ok(()),
            Ok(false) => {}
            // For example, the process limit is reached. Giving up would lose every mount.
            Err(error) => tracing::error!(%error, "could not start the daemon; will retry"),
        }
        pause = if started.elapsed() > STABLE_AFTER { MIN_PAUSE } else { (pause * 2).min(MAX_PAUSE) };
        tracing::warn!(mounts = supervisor.mounts.len(), ?pause, "the daemon died; restarting it");
        std::thread::sleep(pause);
    }
}

fn start(listener: &OwnedFd, channel: OwnedFd, program: &Path, arguments: &[&str]) -> io::Result<Child> {
    // Use the process name that people look for.
    let mut command = Command::new(program);
    command.arg0("isopod").args(arguments);
    command.stdin(Stdio::from(listener.try_clone()?)).stdout(Stdio::from(channel)).spawn()
}

fn end(child: &mut Child) -> io::Result<()> {
    // It may still be alive although it has closed its end.
    let _ = child.kill();
    child.wait().map(drop)
}

/// Like `end`, for a daemon that is not our child.
fn end_worker(worker: &OwnedFd) {
    // Usually it has already ended, and the signal has no effect.
    let _ = pidfd_send_signal(worker, Signal::KILL);
    let _ = poll(&mut [PollFd::new(worker, PollFlags::IN)], None);
}

impl Supervisor {
    /// Runs a daemon until it ends. Returns true if it ended on purpose.
    fn run_daemon(&mut self, listener: &OwnedFd, program: &Path, arguments: &[&str]) -> io::Result<bool> {
        let (ours, theirs) = pair()?;
        let mut child = start(listener, theirs, program, arguments)?;
        let channel = Channel::new(ours);
        let is_wanted = self.hand_over(&channel).is_ok() && self.follow(&channel);
        end(&mut child)?;
        Ok(is_wanted)
    }

    /// Serves one daemon until it is gone. Returns true if it ended on purpose.
    fn follow(&mut self, channel: &Channel) -> bool {
        loop {
            let (message, fds) = match channel.receive() {
                Ok(received) => received,
                // There is no room for its descriptors. The daemon lives, and only this mount would be lost with it.
                Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                    tracing::warn!(%error, "could not keep a mount; it is lost if the daemon dies");
                    continue;
                }
                Err(_) => return false,
            };
            match message {
                ToSupervisor::Settings(settings) => self.settings = Some(settings),
                ToSupervisor::Worker => self.worker = fds.into_iter().next(),
                ToSupervisor::Keep(mount) => drop(self.mounts.insert(mount.name.clone(), (mount, fds))),
                ToSupervisor::Told => self.is_told = true,
                ToSupervisor::Forget { name } => drop(self.mounts.remove(&name)),
                ToSupervisor::Bye => return true,
            }
        }
    }

    fn hand_over(&self, channel: &Channel) -> io::Result<()> {
        let inheritance =
            Inheritance { supervisor: std::process::id(), settings: self.settings.clone(), mounts: self.mounts.len() };
        channel.send(&inheritance, &[])?;
        for (mount, fds) in self.mounts.values() {
            let fds: Vec<BorrowedFd<'_>> = fds.iter().map(OwnedFd::as_fd).collect();
            channel.send(mount, &fds)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use isopod_channel::listen_in;

    use super::*;
    use crate::service::message::{StoreSettings, Tunables};

    /// No client would open its store, so it would refuse every mount for as long as it lives.
    #[test]
    fn a_daemon_that_died_before_it_told_everything_is_not_started_anew() {
        let directory = tempfile::tempdir().unwrap();
        let listener = listen_in(directory.path(), "s", 1).unwrap();
        let started = directory.path().join("started");
        let store = StoreSettings::Directory(directory.path().to_owned());
        let settings = ToSupervisor::Settings(StorageSettings { store, tunables: Tunables::default() });
        for told in [None, Some(settings)] {
            let (ours, theirs) = pair().unwrap();
            let daemon = Channel::new(ours);
            if let Some(message) = &told {
                daemon.send(message, &[]).unwrap();
            }
            drop(daemon);
            let started = started.to_str().unwrap();
            supervise(&listener, Path::new("/usr/bin/touch"), &[started], Some(theirs)).unwrap();
            assert!(!Path::new(started).exists(), "told {told:?}");
        }
    }
}
