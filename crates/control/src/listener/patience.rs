//! How long a connection may take. A head that has begun must come to its end soon (slow-loris); a connection without a
//! request may idle for minutes; a request under way has all the time it needs, because streams do.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

use super::framing::Framing;
use super::limits::ConnectionLimits;
use crate::delivery::Outbox;

/// Requests under way on one connection.
#[derive(Debug, Default)]
pub(super) struct Patience {
    under_way: AtomicUsize,
    /// All that ever began: tells a head that never ended from one whose request was answered between two reads.
    begun: AtomicUsize,
    /// A request had two lengths: nothing on this connection is to be believed any more.
    is_ambiguous: AtomicBool,
}

/// One request under way, until it is dropped.
#[derive(Debug)]
pub(super) struct UnderWay(Arc<Patience>);

/// A response body during which its request is under way.
pub(super) struct PatientBody<B> {
    inner: B,
    _under_way: UnderWay,
}

/// A stream that loses patience with a client that neither sends a request nor goes away.
pub(super) struct PatientStream<S> {
    inner: S,
    patience: Arc<Patience>,
    /// Is told when everything that was written has left.
    outbox: Arc<Outbox>,
    limits: ConnectionLimits,
    phase: Phase,
    framing: Framing,
    /// How many requests had begun when we last looked.
    begun: usize,
    timer: Pin<Box<Sleep>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Nothing has come since the last request.
    Idle,
    /// A head has begun.
    Head,
    /// A request is under way.
    Busy,
    /// HTTP/2 sends frames of its own at any time; only silence counts there.
    Http2,
}

impl Patience {
    pub(super) fn begin(self: &Arc<Self>) -> UnderWay {
        self.begun.fetch_add(1, Ordering::AcqRel);
        self.under_way.fetch_add(1, Ordering::AcqRel);
        UnderWay(Arc::clone(self))
    }

    /// Whether nobody can say where its requests begin and end.
    pub(super) fn is_ambiguous(&self) -> bool {
        self.is_ambiguous.load(Ordering::Acquire)
    }
}

impl UnderWay {
    /// The connection has been given another use and is never idle again.
    pub(super) fn for_ever(self) {
        self.0.under_way.fetch_add(1, Ordering::AcqRel);
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.under_way.fetch_sub(1, Ordering::AcqRel);
    }
}

impl<B> PatientBody<B> {
    pub(super) fn new(inner: B, under_way: UnderWay) -> Self {
        Self { inner, _under_way: under_way }
    }
}

impl<B: Body<Data = Bytes> + Unpin> Body for PatientBody<B> {
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

impl<S> PatientStream<S> {
    pub(super) fn new(inner: S, patience: Arc<Patience>, outbox: Arc<Outbox>, limits: ConnectionLimits) -> Self {
        let timer = Box::pin(tokio::time::sleep(limits.idle_timeout));
        Self { inner, patience, outbox, limits, phase: Phase::Idle, framing: Framing::default(), begun: 0, timer }
    }

    /// Moves to the phase that fits, and winds the clock when that is a new one.
    fn advance(&mut self, received: &[u8]) {
        let busy = self.patience.under_way.load(Ordering::Acquire) > 0;
        let begun = self.patience.begun.load(Ordering::Acquire);
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

impl<S: AsyncRead + Unpin> AsyncRead for PatientStream<S> {
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
                    this.patience.is_ambiguous.store(true, Ordering::Release);
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

impl<S: AsyncWrite + Unpin> AsyncWrite for PatientStream<S> {
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
