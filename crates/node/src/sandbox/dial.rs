//! Opens a byte stream into a sandbox.
//!
//! A frozen guest would accept a connection and never reply. So the state is checked first, under the lock that a pause
//! takes.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use isopod_isolation::sys::ns::{Namespaces, enter};
use isopod_wire::INTERPRETER_PORT;
use isopod_wire::node::{DialError, Incarnation, NodeState, Stream, Target};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use tokio::net::TcpSocket;

use super::Sandboxes;
use crate::guest_request;

/// A listener with a full queue accepts nothing, and the kernel would keep trying for two minutes.
const CONNECT_DEADLINE: Duration = Duration::from_secs(30);

impl Sandboxes {
    pub(crate) async fn dial(&self, incarnation: &Incarnation, target: Target) -> Result<Box<dyn Stream>, DialError> {
        let sandbox = self.find(incarnation).ok_or_else(|| DialError::NotFound(incarnation.clone()))?;
        let mut inner = sandbox.inner.lock().await;
        if inner.ending {
            return Err(DialError::NotFound(incarnation.clone()));
        }
        let state = inner.state();
        let processes = match (&mut inner.processes, state) {
            (Some(processes), NodeState::Running) => processes,
            _ => return Err(DialError::Paused(incarnation.clone())),
        };
        let port = match target {
            Target::Guest => {
                let stream = guest_request::connect_to(&processes.socket).await;
                return Ok(Box::new(stream.map_err(failed(incarnation))?));
            }
            Target::Interpreter => INTERPRETER_PORT,
            Target::Port(port) => port,
        };
        // From now on, one of our sockets may be connecting to a port, so the network must not be recycled.
        processes.network.counters = None;
        let netns = processes.network.netns.try_clone().map_err(failed(incarnation))?;
        let sockets = Arc::clone(&processes.sockets);
        drop(inner);
        let stream = dial_port(&sockets, netns, port).await;
        let refused = || DialError::Refused { incarnation: incarnation.clone(), port };
        match stream {
            Ok(stream) => Ok(Box::new(stream)),
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => Err(refused()),
            Err(error) => Err(failed(incarnation)(error)),
        }
    }
}

fn failed(incarnation: &Incarnation) -> impl FnOnce(io::Error) -> DialError {
    let incarnation = incarnation.clone();
    move |source| DialError::Failed { incarnation, source }
}

async fn dial_port(sockets: &SpareSockets, netns: OwnedFd, port: u16) -> io::Result<tokio::net::TcpStream> {
    let socket = match sockets.take() {
        Some(socket) => socket,
        None => {
            let mut made = tokio::task::spawn_blocking(move || sockets_inside(netns)).await??;
            let first = made.pop().ok_or(io::ErrorKind::NotFound)?;
            sockets.keep(made);
            first
        }
    };
    let socket = TcpSocket::from_std_stream(socket.into());
    socket.set_nodelay(true)?;
    let connected = socket.connect(SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
    let timed_out =
        |_| io::Error::new(io::ErrorKind::TimedOut, "the program that listens there does not accept connections");
    tokio::time::timeout(CONNECT_DEADLINE, connected).await.map_err(timed_out)?
}

/// Unconnected sockets in a sandbox's network namespace. Entering the namespace for one costs more than using it.
#[derive(Debug, Default)]
pub(super) struct SpareSockets {
    sockets: Mutex<Vec<OwnedFd>>,
}

/// How many are created at once.
const BATCH: usize = 8;

impl SpareSockets {
    fn take(&self) -> Option<OwnedFd> {
        self.sockets.lock().unwrap_or_else(PoisonError::into_inner).pop()
    }

    /// Several callers may have created some at the same time. Only a few are worth keeping.
    fn keep(&self, made: Vec<OwnedFd>) {
        let mut sockets = self.sockets.lock().unwrap_or_else(PoisonError::into_inner);
        let room = BATCH.saturating_sub(sockets.len());
        sockets.extend(made.into_iter().take(room));
    }
}

/// Creates sockets in a network namespace. A socket belongs to the namespace in which it was created. A separate thread
/// enters the namespace and ends there, so that no thread of the server stays inside.
fn sockets_inside(netns: OwnedFd) -> io::Result<Vec<OwnedFd>> {
    let thread = std::thread::Builder::new().name("dial".to_owned()).stack_size(64 << 10).spawn(move || {
        enter(&netns, Namespaces::NET)?;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let make = || Ok(socket_with(AddressFamily::INET, SocketType::STREAM, flags, None)?);
        (0..BATCH).map(|_| make()).collect()
    })?;
    thread.join().unwrap_or_else(|_| Err(io::ErrorKind::Other.into()))
}
