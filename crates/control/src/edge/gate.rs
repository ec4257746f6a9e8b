//! A body that ends when its sandbox or this server stops. Until then, it counts as one of the sandbox's requests.
//!
//! A Connect stream ends with an error of its own protocol if its client can connect to the process again: after a
//! pause, or when the server is back. When the sandbox is gone, the stream breaks off. That makes E2B's SDKs check
//! whether the sandbox still runs, and only then do all their versions report that it was killed or timed out. Any
//! other body breaks off too. Over HTTP/2, the error code is INTERNAL_ERROR if the sandbox is gone, and CANCEL
//! otherwise.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body, Frame, SizeHint};
use tokio::sync::OwnedSemaphorePermit;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

use super::frames::{Frames, StreamEnd};

/// A response body from inside a sandbox.
pub(super) struct GatedBody<B> {
    inner: B,
    closed: Pin<Box<WaitForCancellationFutureOwned>>,
    /// Cancelled if the sandbox is gone, as opposed to paused.
    gone: CancellationToken,
    /// Fires when the server is about to stop.
    leaving: Pin<Box<WaitForCancellationFutureOwned>>,
    /// Set for a Connect stream.
    frames: Option<Frames>,
    /// Whether the body was ended here. Nothing more from inside is passed on.
    ended: bool,
    _permit: OwnedSemaphorePermit,
}

/// The events that end a body early.
pub(super) struct Stops {
    /// The sandbox has stopped.
    pub(super) closed: CancellationToken,
    /// The sandbox is gone, as opposed to paused. Cancelled before `closed`.
    pub(super) gone: CancellationToken,
    /// The server is about to stop.
    pub(super) leaving: CancellationToken,
}

/// Why a body ended early.
#[derive(Debug, thiserror::Error)]
pub(super) enum GatedError {
    /// The cause is the error that HTTP/2 sends to the client.
    #[error("the sandbox or the server stopped")]
    Stopped(#[source] h2::Error),
    #[error("the sandbox closed the connection")]
    Upstream(#[from] hyper::Error),
}

impl<B> GatedBody<B> {
    pub(super) fn new(inner: B, headers: &HeaderMap, stops: Stops, permit: OwnedSemaphorePermit) -> Self {
        let Stops { closed, gone, leaving } = stops;
        let (closed, leaving) = (Box::pin(closed.cancelled_owned()), Box::pin(leaving.cancelled_owned()));
        Self { inner, closed, gone, leaving, frames: Frames::of(headers), ended: false, _permit: permit }
    }

    /// Ready if the body ends here, with the reason to send if there is one.
    fn poll_stopped(&mut self, context: &mut Context<'_>) -> Poll<Option<StreamEnd>> {
        let (closed, leaving) = (self.closed.as_mut().poll(context), self.leaving.as_mut().poll(context));
        match (closed, leaving) {
            (Poll::Ready(()), _) if self.gone.is_cancelled() => Poll::Ready(None),
            (_, Poll::Ready(())) => Poll::Ready(Some(StreamEnd::ServerStops)),
            (Poll::Ready(()), _) => Poll::Ready(Some(StreamEnd::SandboxPaused)),
            (Poll::Pending, Poll::Pending) => Poll::Pending,
        }
    }

    /// Returns what the client gets in place of the rest.
    fn stop(&mut self, end: Option<StreamEnd>) -> Result<Frame<Bytes>, GatedError> {
        self.ended = true;
        let frame = end.and_then(|end| self.frames.as_ref()?.end_frame(end));
        match frame {
            Some(frame) => Ok(Frame::data(frame)),
            // Node.js takes a cancelled stream for a complete one.
            None if end.is_none() => Err(GatedError::Stopped(h2::Reason::INTERNAL_ERROR.into())),
            None => Err(GatedError::Stopped(h2::Reason::CANCEL.into())),
        }
    }
}

impl<B> Body for GatedBody<B>
where
    B: Body<Data = Bytes, Error = hyper::Error> + Unpin,
{
    type Data = Bytes;
    type Error = GatedError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, GatedError>>> {
        if self.ended {
            return Poll::Ready(None);
        }
        // Pass on what has arrived before ending the stream, so that a last line of output is not lost to a race.
        match Pin::new(&mut self.inner).poll_frame(context) {
            Poll::Ready(Some(Ok(frame))) => {
                if let (Some(frames), Some(data)) = (&mut self.frames, frame.data_ref()) {
                    frames.pass(data);
                }
                Poll::Ready(Some(Ok(frame)))
            }
            // The connection into a sandbox breaks when it stops, and that may be noticed first.
            Poll::Ready(Some(Err(error))) => match self.poll_stopped(context) {
                Poll::Ready(end) => Poll::Ready(Some(self.stop(end))),
                Poll::Pending => Poll::Ready(Some(Err(error.into()))),
            },
            Poll::Ready(None) => Poll::Ready(None),
            Poll::Pending => self.poll_stopped(context).map(|end| Some(self.stop(end))),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.ended || self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
