//! One kernel: the process that keeps a context's variables and runs its cells, seen through its stream and its pipes.
//!
//! Reading here never waits; [`Kernel::ready`] does, and dropping its future loses nothing. A kernel that is dropped is
//! killed with everything that stayed in its group.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::pipe::{PipeFlags, fcntl_setpipe_size, pipe_with};
use rustix::process::{Pid, PidfdFlags, Signal, WaitStatus};
use serde::{Deserialize, Serialize};
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncWriteExt, Interest};
use tokio::net::UnixStream;
use tokio::net::unix::pipe;
use tokio::sync::oneshot;

use super::events::Source;
use super::lines::Lines;
use super::start::StartError;
use crate::sys::watch_fd;

/// Enough that a kernel seldom waits for the guest.
const PIPE_SIZE: usize = 1 << 20;
const STREAM_READ: usize = 64 << 10;
/// How long a kernel may take from its start to its first word.
const GREETING_PATIENCE: Duration = Duration::from_secs(60);
/// How long a bridge may take to end its own kernel.
const BRIDGE_PATIENCE: Duration = Duration::from_secs(2);
/// How long the reason of a death may take to become known.
const ENDING_PATIENCE: Duration = Duration::from_millis(300);

/// What a kernel is told; one line each.
#[derive(Debug, Serialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub(super) enum Order<'a> {
    Begin { env: &'a BTreeMap<String, String>, seed: &'a str },
    Execute { code: &'a str, env: Option<&'a BTreeMap<String, String>> },
}

/// The first word of a kernel.
#[derive(Debug, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Greeting {
    Hello { pid: i32 },
    Failed { message: String },
}

/// How a kernel came to be, which is also how it has to be treated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Nature {
    /// A mother forked it.
    Forked,
    /// It stands for a Jupyter kernel, which it has to end itself.
    Bridge,
}

/// The ends of a kernel's descriptors that it gets itself.
#[derive(Debug)]
pub(super) struct Ends {
    pub(super) stream: OwnedFd,
    pub(super) stdout: OwnedFd,
    pub(super) stderr: OwnedFd,
}

/// The guest's ends.
#[derive(Debug)]
pub(super) struct Wires {
    stream: UnixStream,
    stdout: Option<pipe::Receiver>,
    stderr: Option<pipe::Receiver>,
    lines: Lines,
}

impl Wires {
    pub(super) fn new() -> io::Result<(Self, Ends)> {
        let (stream, theirs) = std::os::unix::net::UnixStream::pair()?;
        stream.set_nonblocking(true)?;
        let (stdout, stdout_end) = wide_pipe()?;
        let (stderr, stderr_end) = wide_pipe()?;
        let wires = Self {
            stream: UnixStream::from_std(stream)?,
            stdout: Some(pipe::Receiver::from_owned_fd(stdout)?),
            stderr: Some(pipe::Receiver::from_owned_fd(stderr)?),
            lines: Lines::default(),
        };
        Ok((wires, Ends { stream: theirs.into(), stdout: stdout_end, stderr: stderr_end }))
    }

    /// Waits for the kernel's first word.
    pub(super) async fn greet(mut self, nature: Nature) -> Result<Kernel, StartError> {
        let line = match tokio::time::timeout(GREETING_PATIENCE, self.first_line()).await {
            Ok(Some(line)) => line,
            Ok(None) => return Err(StartError::Closed(self.last_words())),
            Err(_) => return Err(StartError::Silent(GREETING_PATIENCE)),
        };
        let pid = match serde_json::from_slice(&line) {
            Ok(Greeting::Hello { pid }) => pid,
            Ok(Greeting::Failed { message }) => return Err(StartError::Refused(message)),
            Err(_) => return Err(StartError::Nonsense),
        };
        // It may be interrupted and killed by this number: never the guest itself, and no group of nobody.
        let pid = Some(pid).filter(|pid| *pid > 1).and_then(Pid::from_raw).ok_or(StartError::Nonsense)?;
        if pid == rustix::process::getpid() {
            return Err(StartError::Nonsense);
        }
        let pidfd = rustix::process::pidfd_open(pid, PidfdFlags::empty()).map_err(|_| StartError::Nonsense)?;
        let pidfd = watch_fd(Arc::new(pidfd), Interest::READABLE).map_err(StartError::Wires)?;
        Ok(Kernel { wires: self, pid, pidfd, nature, begun: false, told: None, collected: None })
    }

    async fn first_line(&mut self) -> Option<bytes::Bytes> {
        loop {
            self.stream.readable().await.ok()?;
            let open = self.fill();
            match self.lines.take() {
                Some(line) => return Some(line),
                None if !open || self.lines.is_too_long() => return None,
                None => {}
            }
        }
    }

    /// What a kernel that never became one said about it.
    fn last_words(&mut self) -> String {
        let mut buffer = vec![0; 4096];
        let words = self.read(Source::Stderr, &mut buffer).unwrap_or_default();
        let text = String::from_utf8_lossy(words);
        text.trim().lines().next_back().map_or_else(String::new, |line| format!(": {line}"))
    }

    /// Takes what the stream has; false when it is closed.
    fn fill(&mut self) -> bool {
        match self.stream.try_read_buf(self.lines.room(STREAM_READ)) {
            Ok(0) => false,
            Ok(_) => true,
            Err(error) => matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted),
        }
    }

    /// Takes what was printed and fits; none when there is nothing now.
    fn read<'a>(&mut self, source: Source, buffer: &'a mut [u8]) -> Option<&'a [u8]> {
        let slot = match source {
            Source::Stdout => &mut self.stdout,
            Source::Stderr => &mut self.stderr,
        };
        match slot.as_ref()?.try_read(buffer) {
            Ok(0) => {
                // Closed for good: it must not look readable for ever.
                *slot = None;
                None
            }
            Ok(n) => Some(&buffer[..n]),
            Err(_) => None,
        }
    }

    fn waiting(&self, source: Source) -> usize {
        let pipe = match source {
            Source::Stdout => &self.stdout,
            Source::Stderr => &self.stderr,
        };
        pipe.as_ref().and_then(|pipe| rustix::io::ioctl_fionread(pipe.as_fd()).ok()).unwrap_or(0) as usize
    }
}

fn wide_pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    // Only the reading end: the flag belongs to each end by itself, and programs expect to print without care.
    let (read, write) = pipe_with(PipeFlags::CLOEXEC)?;
    rustix::io::ioctl_fionbio(&read, true)?;
    // A user's pipes are limited in all; a small one also works.
    let _ = fcntl_setpipe_size(&write, PIPE_SIZE);
    Ok((read, write))
}

async fn readable(pipe: Option<&pipe::Receiver>) {
    match pipe {
        Some(pipe) => drop(pipe.readable().await),
        None => std::future::pending().await,
    }
}

/// Why it is worth looking at a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ready {
    Stream,
    Output,
    Exited,
}

/// How a kernel's process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    Signal(i32),
    Code(i32),
}

impl From<WaitStatus> for Ending {
    fn from(status: WaitStatus) -> Self {
        match status.terminating_signal() {
            Some(signal) => Self::Signal(signal),
            None => Self::Code(status.exit_status().unwrap_or(-1)),
        }
    }
}

/// A kernel that has said hello.
#[derive(Debug)]
pub(super) struct Kernel {
    wires: Wires,
    pid: Pid,
    pidfd: AsyncFd<Arc<OwnedFd>>,
    nature: Nature,
    /// Whether it was told whose it is.
    pub(super) begun: bool,
    /// How its mother says that it ended.
    pub(super) told: Option<oneshot::Receiver<Ending>>,
    /// How the guest itself finds out that it ended, when there is no mother.
    pub(super) collected: Option<oneshot::Receiver<WaitStatus>>,
}

impl Kernel {
    pub(super) fn pid(&self) -> Pid {
        self.pid
    }

    /// Waits until there is something to take. What the stream has goes first, because the first line of a cell is
    /// written before anything is printed.
    pub(super) async fn ready(&self) -> Ready {
        tokio::select! {
            biased;
            _ = self.wires.stream.readable() => Ready::Stream,
            () = readable(self.wires.stdout.as_ref()) => Ready::Output,
            () = readable(self.wires.stderr.as_ref()) => Ready::Output,
            _ = self.pidfd.readable() => Ready::Exited,
        }
    }

    /// Takes what the stream has; false when it is closed.
    pub(super) fn fill(&mut self) -> bool {
        self.wires.fill()
    }

    pub(super) fn lines(&mut self) -> &mut Lines {
        &mut self.wires.lines
    }

    /// Takes what was printed and fits; none when there is nothing now.
    pub(super) fn read<'a>(&mut self, source: Source, buffer: &'a mut [u8]) -> Option<&'a [u8]> {
        self.wires.read(source, buffer)
    }

    /// How much is printed and not taken.
    pub(super) fn waiting(&self, source: Source) -> usize {
        self.wires.waiting(source)
    }

    pub(super) async fn send(&mut self, order: &Order<'_>) -> io::Result<()> {
        let mut line = serde_json::to_vec(order)?;
        line.push(b'\n');
        self.wires.stream.write_all(&line).await
    }

    /// Throws away what came when no cell ran; false when the kernel is gone or of no use.
    pub(super) fn discard(&mut self) -> bool {
        let mut buffer = [0; 8 << 10];
        for source in [Source::Stdout, Source::Stderr] {
            // No more than is there now: somebody may print for ever.
            let mut left = self.waiting(source);
            while left > 0 {
                let Some(taken) = self.read(source, &mut buffer) else { break };
                left = left.saturating_sub(taken.len());
            }
            // Also finds out that it is closed.
            self.read(source, &mut buffer);
        }
        let open = self.fill();
        // The beginning of a line stays, or its rest would be taken for a line.
        while self.wires.lines.take().is_some() {}
        self.wires.lines.shrink();
        open && !self.wires.lines.is_too_long() && !self.has_exited()
    }

    fn has_exited(&self) -> bool {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut fds = [PollFd::new(self.pidfd.get_ref(), PollFlags::IN)];
        poll(&mut fds, Some(&now)).is_ok_and(|ready| ready > 0)
    }

    /// Waits while no cell runs; returns when the kernel is gone.
    pub(super) async fn rest(&mut self) {
        loop {
            let ready = self.ready().await;
            if !self.discard() || ready == Ready::Exited {
                return;
            }
        }
    }

    pub(super) fn interrupt(&self) {
        match self.nature {
            // With what it waits for: `os.system` ignores the signal for as long as its command runs.
            Nature::Forked => self.signal_group(Signal::INT),
            Nature::Bridge => self.signal(Signal::INT),
        }
    }

    /// Ends a wait that an interrupt came just too early for. Does nothing else: the driver's `interrupts.py` says why.
    pub(super) fn nudge(&self) {
        if let Nature::Forked = self.nature {
            self.signal(Signal::URG);
        }
    }

    fn signal(&self, signal: Signal) {
        // It may have ended just now.
        let _ = rustix::process::pidfd_send_signal(self.pidfd.get_ref(), signal);
    }

    fn signal_group(&self, signal: Signal) {
        // The number is the kernel's own until it has ended; after that its group is nobody's business.
        if self.has_exited() {
            return;
        }
        if rustix::process::getpgid(Some(self.pid)).is_ok_and(|group| group == self.pid) {
            let _ = rustix::process::kill_process_group(self.pid, signal);
        } else {
            self.signal(signal);
        }
    }

    /// How it ended, if that becomes known soon.
    pub(super) async fn ending(&mut self) -> Option<Ending> {
        let told = self.told.take();
        let collected = self.collected.take();
        let told = async { told_or_never(told).await };
        let collected = async { Ending::from(told_or_never(collected).await) };
        let ending = async {
            tokio::select! {
                ending = told => ending,
                ending = collected => ending,
            }
        };
        tokio::time::timeout(ENDING_PATIENCE, ending).await.ok()
    }
}

async fn told_or_never<T>(receiver: Option<oneshot::Receiver<T>>) -> T {
    match receiver {
        Some(receiver) => match receiver.await {
            Ok(value) => value,
            Err(_) => std::future::pending().await,
        },
        None => std::future::pending().await,
    }
}

impl Drop for Kernel {
    fn drop(&mut self) {
        if self.nature == Nature::Forked {
            self.signal_group(Signal::KILL);
            return;
        }
        // The end of its stream is the bridge's sign to end its own kernel. It has a while for that.
        let pidfd = Arc::clone(self.pidfd.get_ref());
        tokio::spawn(async move {
            if let Ok(watched) = watch_fd(Arc::clone(&pidfd), Interest::READABLE)
                && tokio::time::timeout(BRIDGE_PATIENCE, watched.readable()).await.is_ok()
            {
                return;
            }
            let _ = rustix::process::pidfd_send_signal(&pidfd, Signal::KILL);
        });
    }
}
