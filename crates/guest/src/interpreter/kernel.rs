//! One kernel: the process that holds a context's variables and runs its cells. The guest talks to it through a stream and
//! two pipes.
//!
//! Reads never wait; [`Kernel::ready`] does, and dropping its future loses nothing. A dropped kernel is killed with every
//! process in its group.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use rustix::io::Errno;
use rustix::pipe::{PipeFlags, fcntl_setpipe_size, pipe_with};
use rustix::process::{Pid, PidfdFlags, Signal, WaitStatus};
use serde::{Deserialize, Serialize};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::net::UnixStream;
use tokio::net::unix::pipe;
use tokio::sync::oneshot;

use super::contexts::random_bytes;
use super::ends::{self, KernelEnds};
use super::events::Source;
use super::lines::Lines;
use super::link::{KernelConnections, Link, Progress};
use super::start::StartError;
use crate::sys::watch_fd;

/// Large enough that a kernel seldom waits for the guest.
const PIPE_SIZE: usize = 1 << 20;
const STREAM_READ: usize = 64 << 10;
/// The longest first message.
const MAX_HELLO: usize = 128 << 10;
/// How long a kernel may take to send its first message.
const HELLO_TIMEOUT: Duration = Duration::from_secs(60);
/// How long a bridge may take to end its Jupyter kernel.
const BRIDGE_TIMEOUT: Duration = Duration::from_secs(2);
/// How long the guest waits for the exit status of a dead kernel.
const EXIT_STATUS_TIMEOUT: Duration = Duration::from_millis(300);

/// A command to a kernel, sent as one line. A fork makes a copy for each seed, and the copies' ends come with it.
#[derive(Debug, Serialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub(super) enum Command<'a> {
    Begin {
        env: &'a BTreeMap<String, String>,
        seed: &'a str,
    },
    Execute {
        code: &'a str,
        env: Option<&'a BTreeMap<String, String>>,
    },
    Fork {
        seeds: &'a [String],
    },
    /// It was restored, with other pipes. A copy gets a new seed.
    Restored {
        seed: Option<&'a str>,
    },
}

/// The first message of a kernel.
#[derive(Debug, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum FirstMessage {
    Hello { pid: i32 },
    Failed { message: String },
}

/// How a kernel was started, which decides how it is interrupted and ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum KernelKind {
    /// A forkserver or another kernel forked it.
    Forked,
    /// It is a bridge to a Jupyter kernel, which the bridge has to end itself.
    Bridge,
}

/// The guest's ends of a kernel's stream and pipes.
#[derive(Debug)]
pub(super) struct KernelConnection {
    link: Arc<Link>,
    stdout: Option<pipe::Receiver>,
    stderr: Option<pipe::Receiver>,
}

impl KernelConnection {
    pub(super) fn new() -> io::Result<(Self, KernelEnds)> {
        let (stream, theirs) = std::os::unix::net::UnixStream::pair()?;
        stream.set_nonblocking(true)?;
        let (stdout, stdout_end) = wide_pipe()?;
        let (stderr, stderr_end) = wide_pipe()?;
        let ends = KernelEnds { stream: theirs.into(), stdout: stdout_end, stderr: stderr_end };
        let connection = Self {
            link: Arc::new(Link::new(UnixStream::from_std(stream)?, KernelConnections::new(&ends)?)),
            stdout: Some(pipe::Receiver::from_owned_fd(stdout)?),
            stderr: Some(pipe::Receiver::from_owned_fd(stderr)?),
        };
        Ok((connection, ends))
    }

    /// A connection whose [first sender](Self::first_sender) is known.
    pub(super) fn with_senders() -> io::Result<(Self, KernelEnds)> {
        let (connection, ends) = Self::new()?;
        ends::record_senders(&connection.link.stream)?;
        Ok((connection, ends))
    }

    /// Continues where an earlier guest was.
    pub(super) fn resume(&self, progress: &Progress) {
        self.link.resume(progress);
    }

    /// Waits for the first message and returns the process that sent it. `None` if there will be none.
    pub(super) async fn first_sender(&self) -> io::Result<Option<Pid>> {
        ends::first_sender(&self.link.stream).await
    }

    /// Waits for the kernel's first message.
    pub(super) async fn wait_for_hello(mut self, kind: KernelKind) -> Result<Kernel, StartError> {
        let pid = self.hello().await?;
        self.into_kernel(pid, kind)
    }

    /// The pid in the kernel's first message.
    pub(super) async fn hello(&mut self) -> Result<Pid, StartError> {
        let line = match tokio::time::timeout(HELLO_TIMEOUT, self.first_line()).await {
            Ok(Some(line)) => line,
            Ok(None) => return Err(StartError::Closed(self.last_stderr_line())),
            Err(_) => return Err(StartError::TimedOut(HELLO_TIMEOUT)),
        };
        let pid = match serde_json::from_slice(&line) {
            Ok(FirstMessage::Hello { pid }) => pid,
            Ok(FirstMessage::Failed { message }) => return Err(StartError::Refused(message)),
            Err(_) => return Err(StartError::Malformed),
        };
        // The guest signals this pid, so it must be neither the guest itself nor one with a special meaning.
        let pid = Some(pid).filter(|pid| *pid > 1).and_then(Pid::from_raw).ok_or(StartError::Malformed)?;
        if pid == rustix::process::getpid() {
            return Err(StartError::Malformed);
        }
        Ok(pid)
    }

    /// The kernel with this pid. It is killed when it is dropped.
    pub(super) fn into_kernel(self, pid: Pid, kind: KernelKind) -> Result<Kernel, StartError> {
        let pidfd = rustix::process::pidfd_open(pid, PidfdFlags::empty()).map_err(|_| StartError::Malformed)?;
        let pidfd = watch_fd(Arc::new(pidfd), Interest::READABLE).map_err(StartError::Connection)?;
        Ok(Kernel { connection: self, pid, pidfd, kind, exit_from_forkserver: None, exit_from_wait: None })
    }

    async fn first_line(&mut self) -> Option<bytes::Bytes> {
        loop {
            self.link.stream.readable().await.ok()?;
            let open = self.fill();
            let mut lines = self.link.lines();
            match lines.take() {
                Some(line) => return Some(line),
                None if !open || lines.len() > MAX_HELLO => return None,
                None => {}
            }
        }
    }

    /// The last line that a failed kernel printed to standard error.
    fn last_stderr_line(&mut self) -> String {
        let mut buffer = vec![0; 4096];
        let words = self.read(Source::Stderr, &mut buffer).unwrap_or_default();
        let text = String::from_utf8_lossy(words);
        text.trim().lines().next_back().map_or_else(String::new, |line| format!(": {line}"))
    }

    /// Reads what the stream has. Returns false if it is closed.
    fn fill(&mut self) -> bool {
        let filled = self.link.stream.try_read_buf(self.link.lines().room(STREAM_READ));
        match filled {
            Ok(0) => false,
            Ok(_) => true,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.fill_from_socket(),
            Err(error) => error.kind() == io::ErrorKind::Interrupted,
        }
    }

    /// Reads from the socket itself. The runtime knows only what its last poll reported, and would miss what has arrived since.
    fn fill_from_socket(&mut self) -> bool {
        let mut buffer = [0; 8 << 10];
        match rustix::io::read(&self.link.stream, &mut buffer) {
            Ok(0) => false,
            Ok(n) => {
                self.link.lines().room(n).extend_from_slice(&buffer[..n]);
                true
            }
            Err(error) => matches!(error, Errno::AGAIN | Errno::INTR),
        }
    }

    /// Reads what was printed, as much as fits. `None` if there is nothing now.
    fn read<'a>(&mut self, source: Source, buffer: &'a mut [u8]) -> Option<&'a [u8]> {
        let slot = match source {
            Source::Stdout => &mut self.stdout,
            Source::Stderr => &mut self.stderr,
        };
        let pipe = slot.as_ref()?;
        // Read directly, for the reason given at `fill_from_socket`. The runtime's read only clears its readiness; otherwise it
        // would wake for nothing.
        let read = match rustix::io::read(pipe, &mut *buffer) {
            Err(Errno::AGAIN) => pipe.try_read(buffer),
            read => read.map_err(io::Error::from),
        };
        match read {
            Ok(0) => {
                // Closed: drop it, or it would be readable forever.
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
    // Only the reading end is non-blocking. The flag is separate for each end, and programs expect blocking output.
    let (read, write) = pipe_with(PipeFlags::CLOEXEC)?;
    rustix::io::ioctl_fionbio(&read, true)?;
    // The kernel limits the total size of a user's pipes. A small one works too.
    let _ = fcntl_setpipe_size(&write, PIPE_SIZE);
    Ok((read, write))
}

async fn readable(pipe: Option<&pipe::Receiver>) {
    match pipe {
        Some(pipe) => drop(pipe.readable().await),
        None => std::future::pending().await,
    }
}

/// What to read from a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ready {
    Stream,
    Output,
    Exited,
}

/// The exit status of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KernelExit {
    Signal(i32),
    Code(i32),
}

impl From<WaitStatus> for KernelExit {
    fn from(status: WaitStatus) -> Self {
        match status.terminating_signal() {
            Some(signal) => Self::Signal(signal),
            None => Self::Code(status.exit_status().unwrap_or(-1)),
        }
    }
}

/// A kernel that has sent its hello.
#[derive(Debug)]
pub(super) struct Kernel {
    connection: KernelConnection,
    pid: Pid,
    pidfd: AsyncFd<Arc<OwnedFd>>,
    kind: KernelKind,
    /// Its exit status as the forkserver reports it.
    pub(super) exit_from_forkserver: Option<oneshot::Receiver<KernelExit>>,
    /// Its exit status if the guest reaps it, because the forkserver is gone.
    pub(super) exit_from_wait: Option<oneshot::Receiver<WaitStatus>>,
}

impl Kernel {
    pub(super) fn pid(&self) -> Pid {
        self.pid
    }

    pub(super) fn kind(&self) -> KernelKind {
        self.kind
    }

    pub(super) fn link(&self) -> &Arc<Link> {
        &self.connection.link
    }

    /// Waits until there is something to read. The stream comes first, because a kernel writes the first line of a cell before it
    /// prints anything.
    pub(super) async fn ready(&self) -> Ready {
        tokio::select! {
            biased;
            _ = self.connection.link.stream.readable() => Ready::Stream,
            () = readable(self.connection.stdout.as_ref()) => Ready::Output,
            () = readable(self.connection.stderr.as_ref()) => Ready::Output,
            _ = self.pidfd.readable() => Ready::Exited,
        }
    }

    /// Reads what the stream has. Returns false if it is closed.
    pub(super) fn fill(&mut self) -> bool {
        self.connection.fill()
    }

    pub(super) fn lines(&self) -> MutexGuard<'_, Lines> {
        self.connection.link.lines()
    }

    /// Reads what was printed, as much as fits. `None` if there is nothing now.
    pub(super) fn read<'a>(&mut self, source: Source, buffer: &'a mut [u8]) -> Option<&'a [u8]> {
        self.connection.read(source, buffer)
    }

    /// How much printed output is unread.
    pub(super) fn waiting(&self, source: Source) -> usize {
        self.connection.waiting(source)
    }

    pub(super) async fn send(&mut self, command: &Command<'_>) -> io::Result<()> {
        // A kernel that was stopped between two cells would never read the command.
        self.resume();
        let mut line = serde_json::to_vec(command)?;
        line.push(b'\n');
        self.link().write_all(&line).await
    }

    /// Tells a restored kernel so. Its stream is new, so it has room for a short line.
    pub(super) fn send_restored(&self, is_copy: bool) {
        let seed = is_copy.then(|| hex::encode(random_bytes::<32>()));
        let Ok(mut line) = serde_json::to_vec(&Command::Restored { seed: seed.as_deref() }) else { return };
        line.push(b'\n');
        // If it fails, the kernel is gone.
        let _ = rustix::net::send(&self.connection.link.stream, &line, rustix::net::SendFlags::NOSIGNAL);
    }

    /// Sends a command with the ends of other kernels. Descriptors arrive with the first bytes.
    pub(super) async fn send_with_ends(&mut self, command: &Command<'_>, ends: Vec<KernelEnds>) -> io::Result<()> {
        self.resume();
        let mut line = serde_json::to_vec(command)?;
        line.push(b'\n');
        let link = self.link();
        let sent = link.stream.async_io(Interest::WRITABLE, || ends::send_ends(&link.stream, &line, &ends)).await?;
        drop(ends);
        link.write_all(&line[sent..]).await
    }

    /// Discards what arrived while no cell ran. Returns false if the kernel is gone or unusable.
    pub(super) fn discard(&mut self) -> bool {
        let mut buffer = [0; 8 << 10];
        for source in [Source::Stdout, Source::Stderr] {
            // Only as much as is there now: a process may print forever.
            let mut left = self.waiting(source);
            while left > 0 {
                let Some(taken) = self.read(source, &mut buffer) else { break };
                left = left.saturating_sub(taken.len());
            }
            // Detects that the pipe is closed.
            self.read(source, &mut buffer);
        }
        let open = self.fill();
        // Keep the start of an incomplete line. Otherwise its rest would look like a line.
        let mut lines = self.lines();
        while lines.take().is_some() {}
        lines.shrink();
        open && !lines.is_too_long() && !self.has_exited()
    }

    fn has_exited(&self) -> bool {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut fds = [PollFd::new(self.pidfd.get_ref(), PollFlags::IN)];
        poll(&mut fds, Some(&now)).is_ok_and(|ready| ready > 0)
    }

    /// Waits while no cell runs. Returns when the kernel is gone.
    pub(super) async fn idle(&mut self) {
        loop {
            let ready = self.ready().await;
            if !self.discard() || ready == Ready::Exited {
                return;
            }
        }
    }

    /// Whether it is stopped. Code may stop its own kernel, and then nothing in the sandbox resumes it.
    pub(super) fn is_stopped(&self) -> bool {
        let stat = std::fs::read(format!("/proc/{}/stat", self.pid.as_raw_nonzero())).unwrap_or_default();
        // The name before the state may contain anything, parentheses too.
        let state = memchr::memrchr(b')', &stat).and_then(|at| stat.get(at + 2));
        state == Some(&b'T')
    }

    /// Resumes it if it is stopped.
    pub(super) fn resume(&self) {
        self.signal(Signal::CONT);
    }

    pub(super) fn interrupt(&self) {
        self.resume();
        match self.kind {
            // Also the processes it waits for: `os.system` ignores the signal while its command runs.
            KernelKind::Forked => self.signal_group(Signal::INT),
            KernelKind::Bridge => self.signal(Signal::INT),
        }
    }

    /// Ends a blocking call that started just after an interrupt. Has no other effect: see the driver's `interrupts.py`.
    pub(super) fn nudge(&self) {
        if let KernelKind::Forked = self.kind {
            self.signal(Signal::URG);
        }
    }

    fn signal(&self, signal: Signal) {
        // It may have just exited.
        let _ = rustix::process::pidfd_send_signal(self.pidfd.get_ref(), signal);
    }

    fn signal_group(&self, signal: Signal) {
        // The pid is the kernel's own only until it has exited.
        if self.has_exited() {
            return;
        }
        if rustix::process::getpgid(Some(self.pid)).is_ok_and(|group| group == self.pid) {
            let _ = rustix::process::kill_process_group(self.pid, signal);
        } else {
            self.signal(signal);
        }
    }

    /// Its exit status, if that becomes known soon.
    pub(super) async fn exit_status(&mut self) -> Option<KernelExit> {
        let exit_from_forkserver = self.exit_from_forkserver.take();
        let exit_from_wait = self.exit_from_wait.take();
        let exit_from_forkserver = async { received_or_never(exit_from_forkserver).await };
        let exit_from_wait = async { KernelExit::from(received_or_never(exit_from_wait).await) };
        let exit_status = async {
            tokio::select! {
                exit_status = exit_from_forkserver => exit_status,
                exit_status = exit_from_wait => exit_status,
            }
        };
        tokio::time::timeout(EXIT_STATUS_TIMEOUT, exit_status).await.ok()
    }
}

async fn received_or_never<T>(receiver: Option<oneshot::Receiver<T>>) -> T {
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
        if self.kind == KernelKind::Forked {
            self.signal_group(Signal::KILL);
            return;
        }
        // A bridge ends its Jupyter kernel when its stream is closed. Give it some time for that.
        let pidfd = Arc::clone(self.pidfd.get_ref());
        tokio::spawn(async move {
            if let Ok(watched) = watch_fd(Arc::clone(&pidfd), Interest::READABLE)
                && tokio::time::timeout(BRIDGE_TIMEOUT, watched.readable()).await.is_ok()
            {
                return;
            }
            let _ = rustix::process::pidfd_send_signal(&pidfd, Signal::KILL);
        });
    }
}
