//! The forkserver: a warm Python process that runs no user code and forks kernels on request.
//!
//! The host sends one into the sandbox ahead of time (*parked*), or the guest starts one when it first needs it. The guest
//! trusts it no more than any other process of the sandbox: it may vanish, hang or send garbage at any time.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::net::{AddressFamily, RecvFlags, Shutdown, SocketFlags, SocketType, recv, shutdown, socketpair};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, PidfdFlags, Signal};
use serde::Deserialize;
use serde_json::json;
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncReadExt, Interest};
use tokio::net::unix::pipe;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;

use super::Interpreter;
use super::driver::{self, Start};
use super::ends::{KernelEnds, send_ends};
use super::kernel::KernelExit;
use super::language::Language;
use super::start::StartError;
use crate::sys::watch_fd;

/// How long a context waits for a parked forkserver. If the host cannot send one, it closes its end, which ends the wait. If
/// it is only late because the host is busy, a second forkserver would make the host even busier.
const PARKED_TIMEOUT: Duration = Duration::from_secs(20);
/// How long a forkserver may take to import its modules, even from a cold disk.
const START_TIMEOUT: Duration = Duration::from_secs(60);
const MAX_PACKET: usize = 64 << 10;
/// How much of a forkserver's standard error is kept.
const MAX_STDERR: usize = 4 << 10;

/// The Python that a forkserver runs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub(super) struct PythonRuntime {
    #[serde(default)]
    pub(super) python: String,
    #[serde(default)]
    pub(super) ipython: bool,
}

#[derive(Debug, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
enum Message {
    Ready(PythonRuntime),
    Exited {
        context: u64,
        status: i32,
    },
    #[serde(other)]
    Other,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum State {
    Waiting,
    Ready,
    Gone,
}

/// The forkserver in use, if there is one.
#[derive(Debug, Default)]
pub(super) struct CurrentForkserver {
    /// Locked while one is started, so that two contexts do not start two.
    current: tokio::sync::Mutex<Option<Arc<Forkserver>>>,
    /// Written when a forkserver becomes ready.
    runtime: Arc<Mutex<PythonRuntime>>,
}

impl CurrentForkserver {
    /// The Python of the last forkserver that was ready.
    pub(super) fn runtime(&self) -> PythonRuntime {
        self.runtime.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns a ready forkserver; starts one if there is none.
    pub(super) async fn ready(&self, interpreter: &Interpreter) -> Result<Arc<Forkserver>, StartError> {
        let mut current = self.current.lock().await;
        if let Some(server) = &*current
            && server.wait_until_ready(PARKED_TIMEOUT).await
        {
            return Ok(Arc::clone(server));
        }
        *current = None;
        let server = Arc::new(Forkserver::start(interpreter, Arc::clone(&self.runtime))?);
        if !server.wait_until_ready(START_TIMEOUT).await {
            return Err(StartError::Forkserver(server.stderr_tail()));
        }
        *current = Some(Arc::clone(&server));
        Ok(server)
    }

    /// Ends the current one, if any, and waits until it has closed its socket. Returns false if that takes too long.
    pub(super) async fn end(&self, timeout: Duration) -> bool {
        let Some(server) = self.current.lock().await.take() else { return true };
        server.end();
        tokio::time::timeout(timeout, server.gone()).await.is_ok()
    }

    /// Stops using this one.
    pub(super) async fn forget(&self, server: &Arc<Forkserver>) {
        let mut current = self.current.lock().await;
        if current.as_ref().is_some_and(|known| Arc::ptr_eq(known, server)) {
            *current = None;
        }
    }
}

/// Takes the socket of a forkserver that the host will send, and starts the first kernel when it is ready.
pub(super) fn park(interpreter: &Arc<Interpreter>, socket: OwnedFd) -> io::Result<()> {
    let interpreter = Arc::clone(interpreter);
    let forkserver = &interpreter.forkserver;
    let server = Arc::new(Forkserver::new(socket, Arc::clone(&forkserver.runtime))?);
    if let Ok(mut current) = forkserver.current.try_lock() {
        *current = Some(Arc::clone(&server));
    }
    tokio::spawn(async move {
        let ready = server.settled().await == State::Ready;
        drop(server);
        if ready {
            let context = interpreter.contexts.ensure_default(&interpreter, &Language::python());
            // On failure, the first cell tries again.
            let _ = context.prepare().await;
        }
    });
    Ok(())
}

/// One forkserver. When the last handle is dropped, it sees the end of its socket and exits; its kernels stay.
#[derive(Debug)]
pub(super) struct Forkserver {
    socket: Arc<AsyncFd<Arc<OwnedFd>>>,
    state: watch::Receiver<State>,
    receiver: JoinHandle<()>,
    next_number: AtomicU64,
    exits: Arc<Mutex<HashMap<u64, oneshot::Sender<KernelExit>>>>,
    /// Its process, if the guest started it.
    process: Option<OwnedFd>,
    stderr_tail: Arc<Mutex<Vec<u8>>>,
}

impl Forkserver {
    fn new(socket: OwnedFd, runtime: Arc<Mutex<PythonRuntime>>) -> io::Result<Self> {
        rustix::io::ioctl_fionbio(&socket, true)?;
        let socket = Arc::new(watch_fd(Arc::new(socket), Interest::READABLE | Interest::WRITABLE)?);
        let (sender, state) = watch::channel(State::Waiting);
        let exits = Arc::default();
        let receiver = tokio::spawn(receive_messages(Arc::clone(&socket), sender, runtime, Arc::clone(&exits)));
        let next_number = AtomicU64::new(1);
        Ok(Self { socket, state, receiver, next_number, exits, process: None, stderr_tail: Arc::default() })
    }

    fn start(interpreter: &Interpreter, runtime: Arc<Mutex<PythonRuntime>>) -> Result<Self, StartError> {
        let connection = |error: rustix::io::Errno| StartError::Connection(error.into());
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).map_err(connection)?;
        let (stderr_pipe, stderr) = pipe_with(PipeFlags::CLOEXEC).map_err(connection)?;
        let null = driver::null()?;
        let start = Start {
            // A template may hold the driver of an earlier version, which knows the mode by this name only.
            arguments: &["mother", "--fd", "3", "--warm", "shell"],
            env: &driver::environment(interpreter),
            cwd: "/",
            stdout: null.as_fd(),
            stderr: stderr.as_fd(),
            extra: Some(theirs.as_fd()),
        };
        let pid = driver::spawn(interpreter, &start)?;
        let mut server = Self::new(ours, runtime).map_err(StartError::Connection)?;
        server.process = process(pid);
        server.collect_stderr(stderr_pipe).map_err(StartError::Connection)?;
        Ok(server)
    }

    /// Keeps the end of what it prints to standard error.
    fn collect_stderr(&self, stderr_pipe: OwnedFd) -> io::Result<()> {
        rustix::io::ioctl_fionbio(&stderr_pipe, true)?;
        let mut stderr_pipe = pipe::Receiver::from_owned_fd(stderr_pipe)?;
        let kept = Arc::clone(&self.stderr_tail);
        tokio::spawn(async move {
            let mut buffer = [0; 1024];
            while let Ok(n @ 1..) = stderr_pipe.read(&mut buffer).await {
                let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
                kept.extend_from_slice(&buffer[..n]);
                let surplus = kept.len().saturating_sub(MAX_STDERR);
                kept.drain(..surplus);
            }
        });
        Ok(())
    }

    /// Why it did not start: the end of its standard error, or else its state.
    fn stderr_tail(&self) -> String {
        let kept = self.stderr_tail.lock().unwrap_or_else(PoisonError::into_inner);
        let text = String::from_utf8_lossy(&kept).trim().to_owned();
        match (text.is_empty(), &*self.state.borrow()) {
            (false, _) => text,
            (true, State::Gone) => "it exited without an error message".to_owned(),
            (true, _) => format!("it was not ready after {} s", START_TIMEOUT.as_secs()),
        }
    }

    /// Has it exit. One of the host's sees the end of its socket.
    fn end(&self) {
        // The other direction stays open and shows when it is gone.
        let _ = shutdown(self.socket.get_ref(), Shutdown::Write);
        self.kill();
    }

    fn kill(&self) {
        if let Some(process) = &self.process {
            let _ = rustix::process::pidfd_send_signal(process, Signal::KILL);
        }
    }

    async fn gone(&self) {
        let mut state = self.state.clone();
        // An error means that its receiver has ended, and so has it.
        let _ = state.wait_for(|state| *state == State::Gone).await;
    }

    /// Waits until it is ready or gone.
    async fn settled(&self) -> State {
        let mut state = self.state.clone();
        let settled = state.wait_for(|state| *state != State::Waiting).await;
        settled.map_or(State::Gone, |state| state.clone())
    }

    async fn wait_until_ready(&self, timeout: Duration) -> bool {
        tokio::time::timeout(timeout, self.settled()).await == Ok(State::Ready)
    }

    /// Requests a kernel, which then speaks for itself. The receiver gets its exit status.
    pub(super) async fn start_kernel(
        &self,
        cwd: &str,
        env: &BTreeMap<String, String>,
        ends: KernelEnds,
    ) -> io::Result<oneshot::Receiver<KernelExit>> {
        let number = self.next_number.fetch_add(1, Ordering::Relaxed);
        let packet = json!({"op": "start", "context": number, "cwd": cwd, "env": env}).to_string();
        if packet.len() > MAX_PACKET {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the working directory's name is too long"));
        }
        let ended = self.await_exit(number);
        loop {
            let mut ready = self.socket.writable().await?;
            match ready.try_io(|socket| send_ends(socket.get_ref(), packet.as_bytes(), std::slice::from_ref(&ends))) {
                Ok(sent) => return sent.map(|_| ended),
                Err(_would_block) => {}
            }
        }
    }

    fn await_exit(&self, number: u64) -> oneshot::Receiver<KernelExit> {
        let (ended, exit_status) = oneshot::channel();
        let mut exits = self.exits.lock().unwrap_or_else(PoisonError::into_inner);
        exits.retain(|_, waiting| !waiting.is_closed());
        exits.insert(number, ended);
        exit_status
    }
}

impl Drop for Forkserver {
    fn drop(&mut self) {
        self.receiver.abort();
        // It may be stuck in an import and not see that its socket is closed.
        self.kill();
    }
}

fn process(pid: Pid) -> Option<OwnedFd> {
    rustix::process::pidfd_open(pid, PidfdFlags::empty()).ok()
}

/// Receives a forkserver's messages until it is gone.
async fn receive_messages(
    socket: Arc<AsyncFd<Arc<OwnedFd>>>,
    state: watch::Sender<State>,
    runtime: Arc<Mutex<PythonRuntime>>,
    exits: Arc<Mutex<HashMap<u64, oneshot::Sender<KernelExit>>>>,
) {
    let mut buffer = vec![0; MAX_PACKET];
    while let Ok(Some(length)) = receive(&socket, &mut buffer).await {
        match serde_json::from_slice(&buffer[..length]) {
            Ok(Message::Ready(ready)) => {
                *runtime.lock().unwrap_or_else(PoisonError::into_inner) = ready;
                state.send_replace(State::Ready);
            }
            Ok(Message::Exited { context, status }) => {
                let waiting = exits.lock().unwrap_or_else(PoisonError::into_inner).remove(&context);
                // No task waits for a kernel that was killed on purpose.
                let _ = waiting.map(|waiting| waiting.send(exit_status(status)));
            }
            Ok(Message::Other) | Err(_) => {}
        }
    }
    state.send_replace(State::Gone);
}

async fn receive(socket: &AsyncFd<Arc<OwnedFd>>, buffer: &mut [u8]) -> io::Result<Option<usize>> {
    loop {
        let mut ready = socket.readable().await?;
        match ready.try_io(|socket| Ok(recv(socket.get_ref(), &mut *buffer, RecvFlags::empty())?)) {
            Ok(Ok((0, _))) => return Ok(None),
            Ok(Ok((length, _))) => return Ok(Some(length)),
            Ok(Err(error)) if error.kind() == io::ErrorKind::Interrupted => {}
            Ok(Err(error)) => return Err(error),
            Err(_would_block) => {}
        }
    }
}

/// Converts Python's form of an exit status, in which a negative number is a signal.
fn exit_status(status: i32) -> KernelExit {
    if status < 0 { KernelExit::Signal(status.saturating_neg()) } else { KernelExit::Code(status) }
}
