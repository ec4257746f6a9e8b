//! Opening a byte stream into a sandbox.
//!
//! A frozen guest would accept a connection and never answer, so the state is looked at first, under the lock that
//! whoever freezes holds.

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

use super::Fleet;
use crate::guest_request;

/// A listener whose queue is full lets nobody in; the kernel alone would try for two minutes.
const CONNECT_DEADLINE: Duration = Duration::from_secs(30);

impl Fleet {
    pub(crate) async fn dial(&self, incarnation: &Incarnation, target: Target) -> Result<Box<dyn Stream>, DialError> {
        let sandbox = self.find(incarnation).ok_or_else(|| DialError::NotFound(incarnation.clone()))?;
        let mut life = sandbox.life.lock().await;
        if life.ending {
            return Err(DialError::NotFound(incarnation.clone()));
        }
        let state = life.state();
        let processes = match (&mut life.processes, state) {
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
        // From now on a socket of ours may be on its way to a port. The network must never be another sandbox's.
        processes.network.witness = None;
        let netns = processes.network.netns.try_clone().map_err(failed(incarnation))?;
        let sockets = Arc::clone(&processes.sockets);
        drop(life);
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
    let timed_out = |_| io::Error::new(io::ErrorKind::TimedOut, "what listens there does not accept connections");
    tokio::time::timeout(CONNECT_DEADLINE, connected).await.map_err(timed_out)?
}

/// Sockets of a sandbox's network that are connected to nothing yet. Going there for one costs more than its use.
#[derive(Debug, Default)]
pub(super) struct SpareSockets {
    sockets: Mutex<Vec<OwnedFd>>,
}

/// How many are made at once.
const BATCH: usize = 8;

impl SpareSockets {
    fn take(&self) -> Option<OwnedFd> {
        self.sockets.lock().unwrap_or_else(PoisonError::into_inner).pop()
    }

    /// Several callers may have made some at the same time; few are worth keeping.
    fn keep(&self, made: Vec<OwnedFd>) {
        let mut sockets = self.sockets.lock().unwrap_or_else(PoisonError::into_inner);
        let room = BATCH.saturating_sub(sockets.len());
        sockets.extend(made.into_iter().take(room));
    }
}

/// A socket belongs to the network namespace in which it was made. A thread of its own goes there and ends there, so
/// that no thread of the server is ever left inside.
fn sockets_inside(netns: OwnedFd) -> io::Result<Vec<OwnedFd>> {
    let thread = std::thread::Builder::new().name("dial".to_owned()).stack_size(64 << 10).spawn(move || {
        enter(&netns, Namespaces::NET)?;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let make = || Ok(socket_with(AddressFamily::INET, SocketType::STREAM, flags, None)?);
        (0..BATCH).map(|_| make()).collect()
    })?;
    thread.join().unwrap_or_else(|_| Err(io::ErrorKind::Other.into()))
}
