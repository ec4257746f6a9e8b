//! The keeper: a process with one thread that holds a copy of every connection, and starts the daemon anew when it died.
//!
//! As long as somebody holds a connection the kernel lets those who wait for it wait, instead of failing them. It does
//! nothing else, so there is little that could make it die; with it dies only this safety, not the daemon.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::channel::{Channel, pair};
use super::message::{Inheritance, KeptMount, StorageSettings, ToKeeper};

const SHORTEST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// A daemon that lived so long did not die of what it was started with.
const GOOD_LIFE: Duration = Duration::from_secs(10);

/// What the next daemon begins with.
#[derive(Debug, Default)]
struct Kept {
    settings: Option<StorageSettings>,
    mounts: BTreeMap<String, (KeptMount, Vec<OwnedFd>)>,
}

/// Keeps a daemon running on a listening socket until it ends by its own wish. `program` with `arguments` becomes the
/// daemon; the socket is its standard input, and the connection to us its standard output.
pub fn run_keeper(listener: &OwnedFd, program: &Path, arguments: &[&str]) -> io::Result<()> {
    // Signals of the terminal that it was started from are not meant for it. It fails when we lead a session already.
    let _ = rustix::process::setsid();
    rustix::process::chdir("/")?;
    let mut kept = Kept::default();
    let mut pause = SHORTEST_PAUSE;
    loop {
        let born = Instant::now();
        let (ours, theirs) = pair()?;
        let mut child = start(listener, theirs, program, arguments)?;
        let is_wanted = kept.follow(&Channel::new(ours));
        end(&mut child)?;
        if is_wanted {
            return Ok(());
        }
        pause = if born.elapsed() > GOOD_LIFE { SHORTEST_PAUSE } else { (pause * 2).min(LONGEST_PAUSE) };
        tracing::warn!(mounts = kept.mounts.len(), ?pause, "the daemon died and is started anew");
        std::thread::sleep(pause);
    }
}

fn start(listener: &OwnedFd, channel: OwnedFd, program: &Path, arguments: &[&str]) -> io::Result<Child> {
    Command::new(program).args(arguments).stdin(Stdio::from(listener.try_clone()?)).stdout(Stdio::from(channel)).spawn()
}

fn end(child: &mut Child) -> io::Result<()> {
    // It may live although it closed its end.
    let _ = child.kill();
    child.wait().map(drop)
}

impl Kept {
    /// Serves one daemon until it is gone. True if it wanted to go.
    fn follow(&mut self, channel: &Channel) -> bool {
        if self.hand_over(channel).is_err() {
            return false;
        }
        while let Ok((message, fds)) = channel.receive::<ToKeeper>() {
            match message {
                ToKeeper::Settings(settings) => self.settings = Some(settings),
                ToKeeper::Keep(mount) => drop(self.mounts.insert(mount.name.clone(), (mount, fds))),
                ToKeeper::Forget { name } => drop(self.mounts.remove(&name)),
                ToKeeper::Bye => return true,
            }
        }
        false
    }

    fn hand_over(&self, channel: &Channel) -> io::Result<()> {
        let inheritance = Inheritance { settings: self.settings.clone(), mounts: self.mounts.len() };
        channel.send(&inheritance, &[])?;
        for (mount, fds) in self.mounts.values() {
            let fds: Vec<BorrowedFd<'_>> = fds.iter().map(OwnedFd::as_fd).collect();
            channel.send(mount, &fds)?;
        }
        Ok(())
    }
}
