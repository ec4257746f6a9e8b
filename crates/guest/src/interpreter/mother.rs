//! The mother: a warm Python process that runs no user code and forks a kernel whenever one is wanted.
//!
//! She comes from outside, ready before anybody asks (*parked*), or the guest starts one at the first need. She is not
//! trusted more than any process of the sandbox's user: she may vanish, be silent or talk nonsense at any time.

use std::collections::{BTreeMap, HashMap};
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recv,
    sendmsg, socketpair,
};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, PidfdFlags, Signal};
use serde::Deserialize;
use serde_json::json;
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncReadExt, Interest};
use tokio::net::unix::pipe;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;

use super::Host;
use super::driver::{self, Start};
use super::kernel::{Ending, Ends};
use super::language::Language;
use super::start::StartError;
use crate::guest::Guest;
use crate::process::basic_environment;
use crate::sys::watch_fd;

/// How long somebody who needs a parked mother waits for her. One who cannot come closes her end, which ends the wait; one
/// who is only late on a busy host must not be answered by a second one, which would make the host busier.
const PARKED_PATIENCE: Duration = Duration::from_secs(20);
/// How long a mother may take to import what she needs, from a cold disk too.
const START_PATIENCE: Duration = Duration::from_secs(60);
const MAX_PACKET: usize = 64 << 10;
/// How much of what a mother says on standard error is kept.
const MAX_COMPLAINT: usize = 4 << 10;

/// What a mother says about herself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub(super) struct About {
    #[serde(default)]
    pub(super) python: String,
    #[serde(default)]
    pub(super) ipython: bool,
}

#[derive(Debug, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
enum Message {
    Ready(About),
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

/// The mother of the moment.
#[derive(Debug, Default)]
pub(super) struct Mothers {
    /// Held while one is started, so that two contexts do not start two.
    current: tokio::sync::Mutex<Option<Arc<Mother>>>,
    /// Written when one becomes ready.
    about: Arc<Mutex<About>>,
}

impl Mothers {
    /// What is known of the last one that was ready.
    pub(super) fn about(&self) -> About {
        self.about.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// A mother who is ready; starts one if there is none.
    pub(super) async fn ready(&self, host: &Host) -> Result<Arc<Mother>, StartError> {
        let mut current = self.current.lock().await;
        if let Some(mother) = &*current
            && mother.until_ready(PARKED_PATIENCE).await
        {
            return Ok(Arc::clone(mother));
        }
        *current = None;
        let mother = Arc::new(Mother::start(host, Arc::clone(&self.about))?);
        if !mother.until_ready(START_PATIENCE).await {
            return Err(StartError::Mother(mother.complaint()));
        }
        *current = Some(Arc::clone(&mother));
        Ok(mother)
    }

    /// Uses this one no more.
    pub(super) async fn forget(&self, mother: &Arc<Mother>) {
        let mut current = self.current.lock().await;
        if current.as_ref().is_some_and(|known| Arc::ptr_eq(known, mother)) {
            *current = None;
        }
    }
}

/// Takes over the socket of a mother who will come from outside, and has the first kernel made when she is ready.
pub(super) fn park(guest: &Arc<Guest>, socket: OwnedFd) -> io::Result<()> {
    let Some(host) = Host::new(guest) else { return Ok(()) };
    let mothers = &host.interpreter().mothers;
    let mother = Arc::new(Mother::new(socket, Arc::clone(&mothers.about))?);
    if let Ok(mut current) = mothers.current.try_lock() {
        *current = Some(Arc::clone(&mother));
    }
    tokio::spawn(async move {
        let ready = mother.settled().await == State::Ready;
        drop(mother);
        if ready {
            let context = host.interpreter().contexts.ensure_default(&host, &Language::python());
            // A failure shows when it is needed: the cell then tries again.
            let _ = context.prepare().await;
        }
    });
    Ok(())
}

/// One mother. When the last of these is dropped she sees the end of her socket and leaves; her kernels stay.
#[derive(Debug)]
pub(super) struct Mother {
    socket: Arc<AsyncFd<Arc<OwnedFd>>>,
    state: watch::Receiver<State>,
    listener: JoinHandle<()>,
    next: AtomicU64,
    expected: Arc<Mutex<HashMap<u64, oneshot::Sender<Ending>>>>,
    /// Her process, when the guest started it.
    process: Option<OwnedFd>,
    complaint: Arc<Mutex<Vec<u8>>>,
}

impl Mother {
    fn new(socket: OwnedFd, about: Arc<Mutex<About>>) -> io::Result<Self> {
        rustix::io::ioctl_fionbio(&socket, true)?;
        let socket = Arc::new(watch_fd(Arc::new(socket), Interest::READABLE | Interest::WRITABLE)?);
        let (told, state) = watch::channel(State::Waiting);
        let expected = Arc::default();
        let listener = tokio::spawn(listen(Arc::clone(&socket), told, about, Arc::clone(&expected)));
        let next = AtomicU64::new(1);
        Ok(Self { socket, state, listener, next, expected, process: None, complaint: Arc::default() })
    }

    fn start(host: &Host, about: Arc<Mutex<About>>) -> Result<Self, StartError> {
        let user = driver::user(host)?;
        let wires = |error: rustix::io::Errno| StartError::Wires(error.into());
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).map_err(wires)?;
        let (complaints, stderr) = pipe_with(PipeFlags::CLOEXEC).map_err(wires)?;
        let null = driver::null()?;
        let start = Start {
            arguments: &["mother", "--fd", "3", "--warm", "shell"],
            env: &basic_environment(&user),
            cwd: "/",
            stdout: null.as_fd(),
            stderr: stderr.as_fd(),
            extra: Some(theirs.as_fd()),
        };
        let pid = driver::spawn(host, &user, &start)?;
        let mut mother = Self::new(ours, about).map_err(StartError::Wires)?;
        mother.process = process(pid);
        mother.hear(complaints).map_err(StartError::Wires)?;
        Ok(mother)
    }

    /// Keeps the last of what she says on standard error.
    fn hear(&self, complaints: OwnedFd) -> io::Result<()> {
        rustix::io::ioctl_fionbio(&complaints, true)?;
        let mut complaints = pipe::Receiver::from_owned_fd(complaints)?;
        let kept = Arc::clone(&self.complaint);
        tokio::spawn(async move {
            let mut buffer = [0; 1024];
            while let Ok(n @ 1..) = complaints.read(&mut buffer).await {
                let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
                kept.extend_from_slice(&buffer[..n]);
                let surplus = kept.len().saturating_sub(MAX_COMPLAINT);
                kept.drain(..surplus);
            }
        });
        Ok(())
    }

    /// What she last complained about.
    fn complaint(&self) -> String {
        let kept = self.complaint.lock().unwrap_or_else(PoisonError::into_inner);
        let text = String::from_utf8_lossy(&kept).trim().to_owned();
        match (text.is_empty(), &*self.state.borrow()) {
            (false, _) => text,
            (true, State::Gone) => "it ended without a word".to_owned(),
            (true, _) => format!("it was not ready after {} s", START_PATIENCE.as_secs()),
        }
    }

    /// Waits until she is ready or gone.
    async fn settled(&self) -> State {
        let mut state = self.state.clone();
        let settled = state.wait_for(|state| *state != State::Waiting).await;
        settled.map_or(State::Gone, |state| state.clone())
    }

    async fn until_ready(&self, patience: Duration) -> bool {
        tokio::time::timeout(patience, self.settled()).await == Ok(State::Ready)
    }

    /// Asks for a kernel. It answers for itself; the receiver tells how it ended.
    pub(super) async fn start_kernel(
        &self,
        cwd: &str,
        env: &BTreeMap<String, String>,
        ends: Ends,
    ) -> io::Result<oneshot::Receiver<Ending>> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let packet = json!({"op": "start", "context": number, "cwd": cwd, "env": env}).to_string();
        if packet.len() > MAX_PACKET {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the working directory's name is too long"));
        }
        let ended = self.expect(number);
        loop {
            let mut ready = self.socket.writable().await?;
            match ready.try_io(|socket| send(socket.get_ref(), packet.as_bytes(), &ends)) {
                Ok(sent) => return sent.map(|()| ended),
                Err(_would_block) => {}
            }
        }
    }

    fn expect(&self, number: u64) -> oneshot::Receiver<Ending> {
        let (ended, ending) = oneshot::channel();
        let mut expected = self.expected.lock().unwrap_or_else(PoisonError::into_inner);
        expected.retain(|_, waiting| !waiting.is_closed());
        expected.insert(number, ended);
        ending
    }
}

impl Drop for Mother {
    fn drop(&mut self) {
        self.listener.abort();
        if let Some(process) = &self.process {
            // She may be stuck in an import and not see that her socket is closed.
            let _ = rustix::process::pidfd_send_signal(process, Signal::KILL);
        }
    }
}

fn process(pid: Pid) -> Option<OwnedFd> {
    rustix::process::pidfd_open(pid, PidfdFlags::empty()).ok()
}

fn send(socket: &OwnedFd, packet: &[u8], ends: &Ends) -> io::Result<()> {
    let fds = [ends.stream.as_fd(), ends.stdout.as_fd(), ends.stderr.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !ancillary.push(SendAncillaryMessage::ScmRights(&fds)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    sendmsg(socket, &[IoSlice::new(packet)], &mut ancillary, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Hears what a mother says until she is gone.
async fn listen(
    socket: Arc<AsyncFd<Arc<OwnedFd>>>,
    state: watch::Sender<State>,
    about: Arc<Mutex<About>>,
    expected: Arc<Mutex<HashMap<u64, oneshot::Sender<Ending>>>>,
) {
    let mut buffer = vec![0; MAX_PACKET];
    while let Ok(Some(length)) = receive(&socket, &mut buffer).await {
        match serde_json::from_slice(&buffer[..length]) {
            Ok(Message::Ready(ready)) => {
                *about.lock().unwrap_or_else(PoisonError::into_inner) = ready;
                state.send_replace(State::Ready);
            }
            Ok(Message::Exited { context, status }) => {
                let waiting = expected.lock().unwrap_or_else(PoisonError::into_inner).remove(&context);
                // Nobody waits for a kernel that was ended on purpose.
                let _ = waiting.map(|waiting| waiting.send(ending(status)));
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

/// As Python tells it: a negative number is a signal.
fn ending(status: i32) -> Ending {
    if status < 0 { Ending::Signal(status.saturating_neg()) } else { Ending::Code(status) }
}
