//! Moves a process's output from its pipes or terminal into the ring, and tells readers how the process ended.
//!
//! There is one task per process. It stops reading while the ring is full, which holds back a process whose reader is slow.
//! When the main process exits, the output in the pipes at that moment still belongs to it. What background children print
//! later goes only into the sandbox's log, so that they neither block nor die of a broken pipe.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};
use std::time::Duration;

use rustix::process::{Signal, WaitStatus};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::oneshot;

use crate::deadline::at;
use crate::gate::Gate;
use crate::logs::ProcessLog;
use crate::process::events::end_event;
use crate::process::{Ending, KILL_TIMEOUT, Process};
use crate::stdio::Source;
use crate::sys::watch_fd;

/// The size of one read, which is also the default capacity of a pipe.
const READ_SIZE: usize = 64 << 10;
/// How long to wait for the last output of a terminal: the kernel delivers it asynchronously.
const TERMINAL_DRAIN_TIMEOUT: Duration = Duration::from_millis(100);

/// A non-blocking descriptor that the runtime watches.
#[derive(Clone, Debug)]
pub(crate) struct Pipe(Arc<AsyncFd<Arc<OwnedFd>>>);

/// Does not keep the pipe open.
#[derive(Debug)]
pub(super) struct WeakPipe(Weak<AsyncFd<Arc<OwnedFd>>>);

impl WeakPipe {
    pub(super) fn upgrade(&self) -> Option<Pipe> {
        self.0.upgrade().map(Pipe)
    }
}

impl Pipe {
    pub(crate) fn new(fd: OwnedFd) -> io::Result<Self> {
        Self::with_interest(fd, Interest::READABLE | Interest::WRITABLE)
    }

    pub(crate) fn with_interest(fd: OwnedFd, interest: Interest) -> io::Result<Self> {
        rustix::io::ioctl_fionbio(&fd, true)?;
        Ok(Self(Arc::new(watch_fd(Arc::new(fd), interest)?)))
    }

    pub(crate) fn fd(&self) -> &OwnedFd {
        self.0.get_ref()
    }

    pub(super) fn downgrade(&self) -> WeakPipe {
        WeakPipe(Arc::downgrade(&self.0))
    }

    /// Writes everything, and waits without blocking the thread while the pipe is full or the gate is closed.
    pub(crate) async fn write_all(&self, gate: &Gate, mut data: &[u8]) -> io::Result<()> {
        while !data.is_empty() {
            let mut ready = self.0.writable().await?;
            let _pass = gate.pass().await;
            match ready.try_io(|fd| rustix::io::write(fd, data).map_err(io::Error::from)) {
                Ok(Ok(written)) => data = &data[written..],
                Ok(Err(error)) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(Err(error)) => return Err(error),
                Err(_would_block) => {}
            }
        }
        Ok(())
    }

    /// Waits for output and passes it to `take`. Returns false at the end.
    async fn read(&self, take: impl Fn(&[u8])) -> bool {
        loop {
            let Ok(mut ready) = self.0.readable().await else { return false };
            match read_now(self.fd(), READ_SIZE, &take) {
                Ok(n) => return n > 0,
                Err(rustix::io::Errno::AGAIN) => ready.clear_ready(),
                Err(rustix::io::Errno::INTR) => {}
                // A terminal returns EIO once its last user has closed it.
                Err(_) => return false,
            }
        }
    }
}

pub(super) fn read_now(fd: &OwnedFd, at_most: usize, take: impl Fn(&[u8])) -> rustix::io::Result<usize> {
    let mut buffer = [MaybeUninit::<u8>::uninit(); READ_SIZE];
    let (data, _) = rustix::io::read(fd, &mut buffer[..at_most.min(READ_SIZE)])?;
    take(data);
    Ok(data.len())
}

/// Runs until the process has ended.
pub(crate) async fn pump(
    process: Arc<Process>,
    pipes: Vec<(Pipe, Source)>,
    exit: oneshot::Receiver<WaitStatus>,
    gate: Gate,
) {
    let deadline = process.deadline;
    let mut pump = Pump { process, pipes, exit, gate };
    let status = tokio::select! {
        status = pump.until_exit() => status,
        () = at(deadline) => return pump.kill().await,
    };
    pump.drain().await;
    if let Some(status) = status {
        pump.process.finish(Ending::Exited(end_event(status)));
    }
    pump.discard().await;
}

struct Pump {
    process: Arc<Process>,
    pipes: Vec<(Pipe, Source)>,
    exit: oneshot::Receiver<WaitStatus>,
    gate: Gate,
}

impl Pump {
    /// Copies output until the process exits. Stops reading while the ring is full.
    async fn until_exit(&mut self) -> Option<WaitStatus> {
        let copy = async {
            let mut copies = self.pipes.iter().map(|(pipe, source)| copy(&self.process, pipe, *source));
            match (copies.next(), copies.next()) {
                (Some(first), Some(second)) => {
                    tokio::join!(first, second);
                }
                (Some(only), _) => only.await,
                (None, _) => {}
            }
            std::future::pending::<()>().await;
        };
        tokio::select! {
            status = &mut self.exit => status.ok(),
            () = copy => None,
        }
    }

    /// Copies the output that was printed before the exit and is still in the pipes.
    async fn drain(&mut self) {
        for (pipe, source) in &self.pipes {
            if *source == Source::Pty {
                while tokio::time::timeout(TERMINAL_DRAIN_TIMEOUT, copy_once(&self.process, pipe, *source)).await
                    == Ok(true)
                {}
                continue;
            }
            // Only as much as is there now: a background child may print forever.
            let mut left = rustix::io::ioctl_fionread(pipe.fd()).unwrap_or(0) as usize;
            while left > 0 {
                until_room(&self.process).await;
                match read_now(pipe.fd(), left, |data| push(&self.process, *source, data)) {
                    Ok(n) if n > 0 => left = left.saturating_sub(n),
                    Err(rustix::io::Errno::INTR) => {}
                    Ok(_) | Err(_) => break,
                }
            }
        }
    }

    /// The deadline has passed: kills the whole group and ends the stream with that reason.
    async fn kill(mut self) {
        drop(self.gate.pass().await);
        let _ = self.process.signal(Signal::KILL);
        let _ = tokio::time::timeout(KILL_TIMEOUT, &mut self.exit).await;
        let _ = tokio::time::timeout(KILL_TIMEOUT, self.drain()).await;
        self.process.finish(Ending::DeadlineExceeded);
        self.discard().await;
    }

    async fn discard(self) {
        let Self { process, pipes, .. } = self;
        let log = Arc::clone(&process.log);
        log.finish();
        drop(process);
        for (pipe, source) in pipes {
            // A terminal without its session has no use, and the number of ptys is limited.
            if source != Source::Pty {
                tokio::spawn(discard(pipe, source, Arc::clone(&log)));
            }
        }
    }
}

/// Copies what the children of an ended process print into the log.
pub(super) async fn discard(pipe: Pipe, source: Source, log: Arc<ProcessLog>) {
    while pipe.read(|data| log.push(source, data)).await {}
    log.finish();
}

async fn copy(process: &Process, pipe: &Pipe, source: Source) {
    while copy_once(process, pipe, source).await {}
}

async fn copy_once(process: &Process, pipe: &Pipe, source: Source) -> bool {
    until_room(process).await;
    pipe.read(|data| push(process, source, data)).await
}

pub(super) fn push(process: &Process, source: Source, data: &[u8]) {
    process.state().output.push(source, data);
    process.log.push(source, data);
    process.changed.notify_waiters();
}

async fn until_room(process: &Process) {
    loop {
        let room = process.room.notified();
        tokio::pin!(room);
        room.as_mut().enable();
        if process.state().output.has_room() {
            return;
        }
        room.await;
    }
}
