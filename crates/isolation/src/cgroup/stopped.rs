//! Stops the processes of a sandbox one by one, so that another program can trace them.
//!
//! A frozen process cannot be traced. But it can get a signal, which it acts on before anything else when it is thawed. So
//! all processes are frozen together, get `SIGSTOP`, and are thawed: none of them runs in between.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::{CgroupError, SandboxCgroup};

/// How long processes may take to stop after they were thawed.
const STOP_DEADLINE: Duration = Duration::from_millis(500);
const MAX_ATTEMPTS: u32 = 10;
const ATTEMPT_PAUSE: Duration = Duration::from_millis(5);
const STOP_PAUSE: Duration = Duration::from_micros(200);

/// Processes of a sandbox that are stopped. Those that ran before go on when this is dropped.
#[derive(Debug, Default)]
pub struct StoppedProcesses {
    /// Those that ran before.
    ours: Vec<(u32, OwnedFd)>,
    /// Those that were stopped already.
    before: Vec<u32>,
}

/// Why processes could not be stopped. They go on.
#[derive(Debug, thiserror::Error)]
pub enum StopError {
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
    /// By its pid and name in the sandbox.
    #[error("could not stop {0}: it waits for something in the kernel, or is continued all the time")]
    Blocked(String),
    #[error("could not stop a process")]
    Signal(#[source] io::Error),
}

/// Told which processes are stopped by themselves, before others are. After an error, none is stopped.
pub type NoteStopped<'a> = &'a dyn Fn(&[u32]) -> io::Result<()>;

impl SandboxCgroup {
    /// Stops all processes but one, which goes on.
    pub fn stop_all_but(&self, spared: u32, note: NoteStopped<'_>) -> Result<StoppedProcesses, StopError> {
        let mut attempts = 1;
        loop {
            match self.try_stop_all_but(spared, note) {
                // A process that waits for its child's exec, as after vfork, does not stop while the child is stopped. Once
                // they run, that takes a moment only.
                Err(StopError::Blocked(_)) if attempts < MAX_ATTEMPTS => thread::sleep(ATTEMPT_PAUSE),
                other => return other,
            }
            attempts += 1;
        }
    }

    fn try_stop_all_but(&self, spared: u32, note: NoteStopped<'_>) -> Result<StoppedProcesses, StopError> {
        self.freeze().inspect_err(|_| drop(self.thaw()))?;
        let stopped = self.signal_stop(spared, note);
        self.thaw()?;
        let stopped = stopped.map_err(StopError::Signal)?;
        stopped.wait()?;
        Ok(stopped)
    }

    fn signal_stop(&self, spared: u32, note: NoteStopped<'_>) -> io::Result<StoppedProcesses> {
        let all = self.pids().into_iter().filter(|pid| *pid != spared);
        let (before, running): (Vec<u32>, Vec<u32>) = all.partition(|pid| state_of(*pid) == Some('T'));
        note(&before)?;
        let mut stopped = StoppedProcesses { ours: Vec::new(), before };
        for pid in running {
            let number = Pid::from_raw(pid.cast_signed()).ok_or(io::ErrorKind::InvalidData)?;
            match pidfd_open(number, PidfdFlags::empty()) {
                Ok(pidfd) => {
                    pidfd_send_signal(&pidfd, Signal::STOP)?;
                    stopped.ours.push((pid, pidfd));
                }
                // Somebody has killed it.
                Err(Errno::SRCH) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(stopped)
    }
}

impl StoppedProcesses {
    /// The pids of all of them on the host.
    pub fn pids(&self) -> impl Iterator<Item = u32> {
        self.ours.iter().map(|(pid, _)| *pid).chain(self.stopped_before())
    }

    /// The pids of those that were stopped by themselves.
    pub fn stopped_before(&self) -> impl Iterator<Item = u32> {
        self.before.iter().copied()
    }

    /// Leaves all of them stopped, for a caller that ends them.
    pub fn keep_stopped(mut self) {
        self.ours.clear();
    }

    fn wait(&self) -> Result<(), StopError> {
        let deadline = Instant::now() + STOP_DEADLINE;
        for (pid, _) in &self.ours {
            // A process that was killed meanwhile is gone or a zombie.
            while !matches!(state_of(*pid), None | Some('T' | 'Z' | 'X')) {
                if Instant::now() > deadline {
                    return Err(StopError::Blocked(described(*pid)));
                }
                thread::sleep(STOP_PAUSE);
            }
        }
        Ok(())
    }
}

impl Drop for StoppedProcesses {
    fn drop(&mut self) {
        for (_, pidfd) in &self.ours {
            // It may have been killed.
            let _ = pidfd_send_signal(pidfd, Signal::CONT);
        }
    }
}

/// As its sandbox knows it, because whoever reads this must not learn pids of the host.
fn described(pid: u32) -> String {
    let read = |file: &str| fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
    let (status, name) = (read("status"), read("comm"));
    let status = String::from_utf8_lossy(&status);
    let pids = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
    let inside = pids.and_then(|pids| pids.split_whitespace().next_back()).unwrap_or("?");
    format!("process {inside} ({})", String::from_utf8_lossy(name.trim_ascii_end()).escape_debug())
}

/// The letter of its state. `None` if it is gone.
fn state_of(pid: u32) -> Option<char> {
    let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
    // The name before the state may contain anything, parentheses too.
    let name_end = stat.iter().rposition(|byte| *byte == b')')?;
    stat.get(name_end + 2).map(|byte| char::from(*byte))
}
