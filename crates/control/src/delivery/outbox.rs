//! What one client's connection has sent, and how much of that the client's host has acknowledged.

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
    unacknowledged: Unacknowledged,
    /// Bytes that the kernel has taken.
    written: AtomicU64,
    /// Whether the end of our side was sent, which the kernel counts as one more byte.
    shut: AtomicBool,
    /// Frames that HTTP has let go of since the last flush.
    released: Mutex<Vec<Released>>,
    /// The stream whose frames are reported before they are written; one at a time, over HTTP/1.
    announced: Mutex<Weak<StreamDelivery>>,
    /// How the connection was when it closed.
    end: OnceLock<Line>,
}

/// A frame that HTTP has written, or thrown away.
#[derive(Debug)]
pub(super) struct Released {
    pub(super) stream: Arc<StreamDelivery>,
    /// Where in the stream it ends.
    pub(super) end: u64,
    /// What the connection has written, at the least, if it was not thrown away.
    pub(super) written: u64,
}

/// How a connection is at one moment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Line {
    /// Bytes that have arrived.
    pub(super) acknowledged: u64,
    /// The client has closed its side, or the connection is broken.
    pub(super) closed: bool,
}

impl Outbox {
    pub(crate) fn new(socket: &Arc<OwnedWriteHalf>, unacknowledged: Unacknowledged) -> Self {
        Self {
            socket: Arc::downgrade(socket),
            unacknowledged,
            written: AtomicU64::new(0),
            shut: AtomicBool::new(false),
            released: Mutex::default(),
            announced: Mutex::default(),
            end: OnceLock::new(),
        }
    }

    /// The kernel has taken so many more bytes.
    pub(crate) fn wrote(&self, bytes: usize) {
        self.written.fetch_add(bytes as u64, Ordering::AcqRel);
    }

    /// What HTTP has is about to be given to the kernel: the next thing that happens is the write.
    pub(crate) fn writes(&self) {
        if let Some(stream) = self.announced() {
            stream.announce();
        }
    }

    /// The kernel has no room for more.
    pub(crate) fn blocked(&self) {
        if let Some(stream) = self.announced() {
            stream.retract();
        }
    }

    /// The end of our side was sent.
    pub(crate) fn shut(&self) {
        self.shut.store(true, Ordering::Release);
    }

    /// Whatever HTTP has let go of is with the kernel now.
    pub(crate) fn flushed(&self) {
        let released = self.take_released();
        let written = self.written();
        for frame in released.into_iter().filter(|frame| frame.written <= written) {
            frame.stream.sent(frame.end, written);
        }
    }

    /// The connection is about to close.
    pub(crate) fn close(&self, socket: &OwnedWriteHalf) {
        let _ = self.end.set(self.look_at(socket));
        drop(self.take_released());
    }

    /// Frames of this stream are reported before they are written.
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

    pub(super) fn line(&self) -> Line {
        match (self.end.get(), self.socket.upgrade()) {
            (Some(end), _) => *end,
            (None, Some(socket)) => self.look_at(&socket),
            (None, None) => Line { acknowledged: self.written(), closed: true },
        }
    }

    fn look_at(&self, socket: &OwnedWriteHalf) -> Line {
        // In this order: with its end a client acknowledges all that it has received.
        let closed = is_closed(socket);
        let unacknowledged = (self.unacknowledged)(socket.as_ref().as_fd()).unwrap_or(0) as u64;
        let unacknowledged = unacknowledged.saturating_sub(u64::from(self.shut.load(Ordering::Acquire)));
        Line { acknowledged: self.written().saturating_sub(unacknowledged), closed }
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
    // What is wrong with the connection is told without being asked for.
    rustix::event::poll(&mut watched, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|ready| ready > 0)
}
