//! The daemon's side of its supervisor: the messages to it, and its replacement if it dies.
//!
//! A supervisor sends nothing after the inheritance, so a thread that waits for its messages notices its end.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use isopod_channel::pair;
use rustix::process::{PidfdFlags, getpid, pidfd_open};
use serde::de::IgnoredAny;

use super::channel::Channel;
use super::message::{Inheritance, KeptMount, StorageSettings, ToSupervisor};
use super::worker::{Served, Worker, spawn};

const MIN_PAUSE: Duration = Duration::from_millis(50);
const MAX_PAUSE: Duration = Duration::from_secs(5);

/// How this program becomes the supervisor of a running daemon. The listening socket is its standard input, and the
/// connection to the daemon is its standard output.
#[derive(Clone, Debug)]
pub struct SupervisorProgram {
    /// Usually this program itself.
    pub program: PathBuf,
    pub arguments: Vec<OsString>,
}

/// The connection to the supervisor.
#[derive(Debug)]
pub(super) struct Supervision {
    channel: Arc<Channel>,
    pid: u32,
}

/// What an earlier daemon left.
#[derive(Debug)]
pub(super) struct Inherited {
    pub(super) settings: Option<StorageSettings>,
    pub(super) mounts: Vec<(KeptMount, Vec<OwnedFd>)>,
}

impl Supervision {
    /// Receives what the supervisor sends to every daemon that it starts.
    pub(super) fn receive(supervisor: OwnedFd) -> io::Result<(Self, Inherited)> {
        let channel = Channel::new(supervisor);
        let (Inheritance { supervisor, settings, mounts }, _) = channel.receive()?;
        let mounts = (0..mounts).filter_map(|_| receive_mount(&channel).transpose()).collect::<io::Result<_>>()?;
        Ok((Self { channel: Arc::new(channel), pid: supervisor }, Inherited { settings, mounts }))
    }

    pub(super) fn pid(&self) -> u32 {
        self.pid
    }

    pub(super) fn send(&self, message: &ToSupervisor, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        self.channel.send(message, fds)
    }

    /// Sends a message. A failure is only logged, because a supervisor that is gone is replaced by one that gets
    /// everything.
    pub(super) fn tell(&self, message: &ToSupervisor, fds: &[BorrowedFd<'_>]) {
        if let Err(error) = self.send(message, fds) {
            tracing::warn!(%error, "could not reach the supervisor; its replacement will get the message");
        }
    }

    pub(super) fn keep(&self, name: &str, served: &Served) {
        self.tell(&kept(name, served), &descriptors(served));
    }
}

impl Worker {
    /// Starts another supervisor whenever ours dies, for as long as this process lives.
    pub(super) fn watch_supervisor(&self) {
        loop {
            let channel = Arc::clone(&self.state().supervision.channel);
            match channel.receive::<IgnoredAny>() {
                Ok(_) => continue,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(_) => {}
            }
            if self.state().is_ending {
                return;
            }
            self.replace_supervisor();
        }
    }

    fn replace_supervisor(&self) {
        let mut pause = MIN_PAUSE;
        while let Err(error) = self.start_supervisor() {
            tracing::error!(%error, "could not replace the dead supervisor; mounts are lost if this daemon dies too");
            std::thread::sleep(pause);
            pause = (pause * 2).min(MAX_PAUSE);
        }
        tracing::warn!("the supervisor died and was replaced");
    }

    fn start_supervisor(&self) -> io::Result<()> {
        let (ours, theirs) = pair()?;
        let mut child = Command::new(&self.supervisor_program.program)
            .arg0("isopod")
            .args(&self.supervisor_program.arguments)
            .stdin(Stdio::from(self.listener.try_clone()?))
            .stdout(Stdio::from(theirs))
            .spawn()?;
        let pid = child.id();
        spawn("supervisor-reaper", move || drop(child.wait()))?;
        let channel = Channel::new(ours);
        let this = pidfd_open(getpid(), PidfdFlags::empty())?;
        let mut state = self.state();
        channel.send(&ToSupervisor::Worker, &[this.as_fd()])?;
        if let Some(open) = &state.open {
            channel.send(&ToSupervisor::Settings(open.settings.clone()), &[])?;
        }
        for (name, served) in &state.served {
            channel.send(&kept(name, served), &descriptors(served))?;
        }
        channel.send(&ToSupervisor::Told, &[])?;
        state.supervision = Supervision { channel: Arc::new(channel), pid };
        Ok(())
    }
}

/// Returns `None` if there is no room for its descriptors. The other mounts continue.
fn receive_mount(channel: &Channel) -> io::Result<Option<(KeptMount, Vec<OwnedFd>)>> {
    match channel.receive() {
        Err(error) if error.kind() == io::ErrorKind::InvalidData => {
            tracing::warn!(%error, "could not receive a mount of the earlier daemon; it is lost");
            Ok(None)
        }
        received => received.map(Some),
    }
}

fn kept(name: &str, served: &Served) -> ToSupervisor {
    ToSupervisor::Keep(KeptMount { name: name.to_owned(), mount: served.mount.clone() })
}

/// The descriptors, in the order in which they are taken over.
fn descriptors(served: &Served) -> Vec<BorrowedFd<'_>> {
    let aborter = served.aborter.as_ref().map(|file| file.as_fd());
    std::iter::once(served.connection.as_fd()).chain(aborter).collect()
}
