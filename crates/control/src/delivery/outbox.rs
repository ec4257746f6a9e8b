//! Tracks what one client's connection has sent, and how much of that the client's host has acknowledged.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use rustix::event::{PollFd, PollFlags, Timespec};
use tokio::net::tcp::OwnedWriteHalf;

use super::stream::StreamDelivery;

/// Asks the kernel how many bytes of a TCP connection the other host has not acknowledged.
pub type Unacknowledged = fn(BorrowedFd<'_>) -> io::Result<usize>;

/// One per connection.
#[derive(Debug)]
pub(crate) struct Outbox {
    socket: Weak<OwnedWriteHalf>,
    /// Whether there is no socket, because another server has the connection to the client.
    is_tunnel: bool,
    unacknowledged: Unacknowledged,
    /// Bytes that the kernel has accepted.
    written: AtomicU64,
    /// Whether our side was shut down. The kernel counts the FIN as one more byte.
    shut: AtomicBool,
    /// Whether HTTP may still hold parts of a response from a sandbox.
    buffered: AtomicBool,
    /// Whether the connection ends with a reset instead of a FIN.
    resets: AtomicBool,
    /// Frames that HTTP has dropped since the last flush.
    released: Mutex<Vec<Released>>,
    /// The stream whose frames are reported before they are written. Only one at a time, over HTTP/1.
    announced: Mutex<Weak<StreamDelivery>>,
    /// The state of the connection when it closed.
    end: OnceLock<ConnectionState>,
}

/// A frame that HTTP has written or discarded.
#[derive(Debug)]
pub(super) struct Released {
    pub(super) stream: Arc<StreamDelivery>,
    /// Its end in the stream.
    pub(super) end: u64,
    /// The least that the connection has written if the frame was not discarded.
    pub(super) written: u64,
}

/// The state of a connection at one moment.
#[derive(Clone, Copy, Debug)]
pub(super) struct ConnectionState {
    /// Bytes that have arrived.
    pub(super) acknowledged: u64,
    /// Whether the client has closed its side, or the connection is broken.
    pub(super) closed: bool,
}

impl Outbox {
    pub(crate) fn new(socket: &Arc<OwnedWriteHalf>, unacknowledged: Unacknowledged) -> Self {
        Self { socket: Arc::downgrade(socket), ..Self::with(unacknowledged) }
    }

    /// For a stream of another server, which has the connection to the client.
    pub(crate) fn of_tunnel() -> Self {
        Self { socket: Weak::new(), is_tunnel: true, ..Self::with(|_| Ok(0)) }
    }

    fn with(unacknowledged: Unacknowledged) -> Self {
        Self {
            socket: Weak::new(),
            is_tunnel: false,
            unacknowledged,
            written: AtomicU64::new(0),
            shut: AtomicBool::new(false),
            buffered: AtomicBool::new(false),
            resets: AtomicBool::new(false),
            released: Mutex::default(),
            announced: Mutex::default(),
            end: OnceLock::new(),
        }
    }

    /// Records that the kernel has accepted more bytes.
    pub(crate) fn wrote(&self, bytes: usize) {
        self.written.fetch_add(bytes as u64, Ordering::AcqRel);
    }

    /// Called right before the kernel gets what HTTP has buffered.
    pub(crate) fn before_write(&self) {
        if let Some(stream) = self.announced() {
            stream.announce();
        }
    }

    /// Called when the kernel has no room for more.
    pub(crate) fn blocked(&self) {
        if let Some(stream) = self.announced() {
            stream.retract();
        }
    }

    /// Called when our side was shut down.
    pub(crate) fn shut(&self) {
        self.shut.store(true, Ordering::Release);
    }

    /// Called when HTTP gets a part of a response from a sandbox.
    pub(crate) fn hand_out(&self) {
        self.buffered.store(true, Ordering::Release);
    }

    /// Whether everything that HTTP got is with the kernel. Over HTTP/2, frames that wait for the client's window do
    /// not count.
    pub(crate) fn is_flushed(&self) -> bool {
        !self.buffered.load(Ordering::Acquire)
    }

    /// Whether the client's host has acknowledged everything that was written.
    pub(crate) fn has_arrived(&self) -> bool {
        self.connection_state().acknowledged >= self.written()
    }

    /// Makes the connection end with a reset.
    pub(crate) fn reset_when_closed(&self) {
        self.resets.store(true, Ordering::Release);
    }

    pub(crate) fn resets(&self) -> bool {
        self.resets.load(Ordering::Acquire)
    }

    /// Called when everything that HTTP has dropped is with the kernel.
    pub(crate) fn flushed(&self) {
        self.buffered.store(false, Ordering::Release);
        let released = self.take_released();
        let written = self.written();
        for frame in released.into_iter().filter(|frame| frame.written <= written) {
            frame.stream.sent(frame.end, written);
        }
    }

    /// Records the final state of a connection that is about to close.
    pub(crate) fn close(&self, socket: &OwnedWriteHalf) {
        let _ = self.end.set(self.query(socket));
        drop(self.take_released());
    }

    /// Records the final state of a tunnel that is about to close.
    pub(crate) fn close_tunnel(&self) {
        let _ = self.end.set(ConnectionState { acknowledged: self.written(), closed: true });
        drop(self.take_released());
    }

    /// Reports frames of this stream before they are written.
    pub(super) fn announce(&self, stream: &Arc<StreamDelivery>) {
        *self.announced.lock().unwrap_or_else(PoisonError::into_inner) = Arc::downgrade(stream);
    }

    pub(super) fn written(&self) -> u64 {
        self.written.load(Ordering::Acquire)
    }

    pub(super) fn release(&self, frame: Released) {
        if self.end.get().is_none() {
            self.released.lock().unwrap_or_else(PoisonError::into_inner).push(frame);
        }
    }

    pub(super) fn connection_state(&self) -> ConnectionState {
        match (self.end.get(), self.socket.upgrade()) {
            (Some(end), _) => *end,
            (None, Some(socket)) => self.query(&socket),
            (None, None) => ConnectionState { acknowledged: self.written(), closed: !self.is_tunnel },
        }
    }

    fn query(&self, socket: &OwnedWriteHalf) -> ConnectionState {
        // The order matters: with its FIN, a client acknowledges everything it has received.
        let closed = is_closed(socket);
        let unacknowledged = (self.unacknowledged)(socket.as_ref().as_fd()).unwrap_or(0) as u64;
        let unacknowledged = unacknowledged.saturating_sub(u64::from(self.shut.load(Ordering::Acquire)));
        ConnectionState { acknowledged: self.written().saturating_sub(unacknowledged), closed }
    }

    fn announced(&self) -> Option<Arc<StreamDelivery>> {
        self.announced.lock().unwrap_or_else(PoisonError::into_inner).upgrade()
    }

    fn take_released(&self) -> Vec<Released> {
        std::mem::take(&mut *self.released.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

fn is_closed(socket: &OwnedWriteHalf) -> bool {
    let mut watched = [PollFd::new(socket.as_ref(), PollFlags::RDHUP)];
    // The kernel reports errors without being asked for them.
    rustix::event::poll(&mut watched, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|ready| ready > 0)
}
