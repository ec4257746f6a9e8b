//! The supervisor: a process with one thread that holds a copy of every connection and restarts a daemon that died.
//!
//! As long as somebody holds a connection the kernel lets those who wait for it wait, instead of failing them. It does
//! nothing else, so there is little that could make it die. When it does, the daemon starts another supervisor
//! (`supervision`), which follows that daemon until its end and then starts its own.

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
/// A daemon that lived so long did not die of what it was started with.
const STABLE_AFTER: Duration = Duration::from_secs(10);

/// What the next daemon begins with.
#[derive(Debug, Default)]
struct Supervisor {
    settings: Option<StorageSettings>,
    mounts: BTreeMap<String, (KeptMount, Vec<OwnedFd>)>,
    /// A daemon that we did not start ourselves.
    worker: Option<OwnedFd>,
    /// That one has told us everything.
    is_told: bool,
}

/// Keeps a daemon running on a listening socket until it ends by its own wish. `program` with `arguments` becomes the
/// daemon; the socket is its standard input, and the connection to us its standard output. `running` is the connection to
/// one that runs already and has lost its supervisor.
pub fn run_supervisor(
    listener: &OwnedFd,
    program: &Path,
    arguments: &[&str],
    running: Option<OwnedFd>,
) -> io::Result<()> {
    // Signals of the terminal that it was started from are not meant for it. It fails when we lead a session already.
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
        // One that died before it had told everything leaves a part of its mounts at best, and a daemon that knows only
        // those would pass for one that has them all. With none, whoever needs it starts afresh.
        if !supervisor.is_told {
            tracing::warn!("the daemon died before it had told its new supervisor everything; its mounts are lost");
            return Ok(());
        }
        tracing::warn!(mounts = supervisor.mounts.len(), "the daemon died and is started anew");
    }
    loop {
        let started = Instant::now();
        match supervisor.run_daemon(listener, program, arguments) {
            Ok(true) => return Ok(()),
            Ok(false) => {}
            // Such as no room for another process. Giving up would cost every mount.
            Err(error) => tracing::error!(%error, "the daemon cannot be started"),
        }
        pause = if started.elapsed() > STABLE_AFTER { MIN_PAUSE } else { (pause * 2).min(MAX_PAUSE) };
        tracing::warn!(mounts = supervisor.mounts.len(), ?pause, "the daemon died and is started anew");
        std::thread::sleep(pause);
    }
}

fn start(listener: &OwnedFd, channel: OwnedFd, program: &Path, arguments: &[&str]) -> io::Result<Child> {
    // Under the name that people look for.
    let mut command = Command::new(program);
    command.arg0("isopod").args(arguments);
    command.stdin(Stdio::from(listener.try_clone()?)).stdout(Stdio::from(channel)).spawn()
}

fn end(child: &mut Child) -> io::Result<()> {
    // It may live although it closed its end.
    let _ = child.kill();
    child.wait().map(drop)
}

/// As `end`, for a daemon that is no child of ours.
fn end_worker(worker: &OwnedFd) {
    // It has usually ended by itself; then there is nobody to tell.
    let _ = pidfd_send_signal(worker, Signal::KILL);
    let _ = poll(&mut [PollFd::new(worker, PollFlags::IN)], None);
}

impl Supervisor {
    /// One life of a daemon. True if it wanted to go.
    fn run_daemon(&mut self, listener: &OwnedFd, program: &Path, arguments: &[&str]) -> io::Result<bool> {
        let (ours, theirs) = pair()?;
        let mut child = start(listener, theirs, program, arguments)?;
        let channel = Channel::new(ours);
        let is_wanted = self.hand_over(&channel).is_ok() && self.follow(&channel);
        end(&mut child)?;
        Ok(is_wanted)
    }

    /// Serves one daemon until it is gone. True if it wanted to go.
    fn follow(&mut self, channel: &Channel) -> bool {
        loop {
            let (message, fds) = match channel.receive() {
                Ok(received) => received,
                // There is no room for its descriptors. The daemon lives, and only this mount would end with it.
                Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                    tracing::warn!(%error, "a mount is not kept");
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

    /// Nobody would open its store: it would refuse every mount for as long as it lives.
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
