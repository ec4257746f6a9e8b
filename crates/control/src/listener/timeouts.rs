//! Timeouts of connections. A head must be complete soon after it began (slow loris). A connection without a request
//! may idle for minutes. A request in progress has no limit, because streams need that.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

use super::limits::ConnectionLimits;
use crate::delivery::Outbox;
use isopod_api::Framing;

/// The active requests of one connection.
#[derive(Debug, Default)]
pub(super) struct ActiveRequests {
    active: AtomicUsize,
    /// All requests that ever began. Distinguishes an incomplete head from one whose request was answered between two
    /// reads.
    begun: AtomicUsize,
    /// Whether a request had two lengths. After that, nothing on this connection can be trusted.
    is_ambiguous: AtomicBool,
}

/// An active request, until it is dropped.
#[derive(Debug)]
pub(super) struct ActiveRequest(Arc<ActiveRequests>);

/// A response body that keeps its request active.
pub(super) struct ActiveBody<B> {
    inner: B,
    _active: ActiveRequest,
}

/// A stream that times out if the client neither sends a request nor disconnects.
pub(super) struct TimeoutStream<S> {
    inner: S,
    requests: Arc<ActiveRequests>,
    /// Notified when everything written was flushed.
    outbox: Arc<Outbox>,
    limits: ConnectionLimits,
    phase: Phase,
    framing: Framing,
    /// How many requests had begun at the last read.
    begun: usize,
    timer: Pin<Box<Sleep>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Nothing has arrived since the last request.
    Idle,
    /// A head has begun.
    Head,
    /// A request is active.
    Busy,
    /// HTTP/2 sends control frames at any time, so only silence counts.
    Http2,
}

impl ActiveRequests {
    pub(super) fn begin(self: &Arc<Self>) -> ActiveRequest {
        self.begun.fetch_add(1, Ordering::AcqRel);
        self.active.fetch_add(1, Ordering::AcqRel);
        ActiveRequest(Arc::clone(self))
    }

    /// Whether the boundaries of its requests are ambiguous.
    pub(super) fn is_ambiguous(&self) -> bool {
        self.is_ambiguous.load(Ordering::Acquire)
    }
}

impl ActiveRequest {
    /// Marks the connection as upgraded: it is never idle again.
    pub(super) fn keep_forever(self) {
        self.0.active.fetch_add(1, Ordering::AcqRel);
    }
}

impl Drop for ActiveRequest {
    fn drop(&mut self) {
        self.0.active.fetch_sub(1, Ordering::AcqRel);
    }
}

impl<B> ActiveBody<B> {
    pub(super) fn new(inner: B, active: ActiveRequest) -> Self {
        Self { inner, _active: active }
    }
}

impl<B: Body<Data = Bytes> + Unpin> Body for ActiveBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        Pin::new(&mut self.inner).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

impl<S> TimeoutStream<S> {
    pub(super) fn new(inner: S, requests: Arc<ActiveRequests>, outbox: Arc<Outbox>, limits: ConnectionLimits) -> Self {
        let timer = Box::pin(tokio::time::sleep(limits.idle_timeout));
        Self { inner, requests, outbox, limits, phase: Phase::Idle, framing: Framing::default(), begun: 0, timer }
    }

    /// Moves to the matching phase, and resets the timer if it changes.
    fn advance(&mut self, received: &[u8]) {
        let busy = self.requests.active.load(Ordering::Acquire) > 0;
        let begun = self.requests.begun.load(Ordering::Acquire);
        if std::mem::replace(&mut self.begun, begun) != begun && self.phase == Phase::Head {
            self.phase = Phase::Busy;
        }
        let next = match self.phase {
            Phase::Http2 => Phase::Http2,
            Phase::Idle if received.starts_with(b"PRI") => Phase::Http2,
            _ if busy => Phase::Busy,
            Phase::Idle | Phase::Busy if received.is_empty() => Phase::Idle,
            _ => Phase::Head,
        };
        let rewind = next != self.phase || (next == Phase::Http2 && (busy || !received.is_empty()));
        self.phase = next;
        let limit = match next {
            Phase::Idle | Phase::Http2 if rewind => self.limits.idle_timeout,
            Phase::Head if rewind => self.limits.head_timeout,
            _ => return,
        };
        self.timer.as_mut().reset(Instant::now() + limit);
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for TimeoutStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let before = buffer.filled().len();
        match Pin::new(&mut this.inner).poll_read(context, buffer) {
            Poll::Ready(Ok(())) => {
                let received = &buffer.filled()[before..];
                if this.framing.sees_two_lengths(received) {
                    this.requests.is_ambiguous.store(true, Ordering::Release);
                }
                this.advance(received);
                Poll::Ready(Ok(()))
            }
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Pending => {
                this.advance(&[]);
                if this.phase == Phase::Busy {
                    return Poll::Pending;
                }
                this.timer.as_mut().poll(context).map(|()| Err(io::ErrorKind::TimedOut.into()))
            }
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for TimeoutStream<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(context, data)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.inner).poll_flush(context);
        if let Poll::Ready(Ok(())) = flushed {
            self.outbox.flushed();
        }
        flushed
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        data: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write_vectored(context, data)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }
}
