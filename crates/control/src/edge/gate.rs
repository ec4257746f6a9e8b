//! A body that ends when its sandbox or this server stops, and that counts as one of the sandbox's requests until then.
//!
//! A Connect stream ends with an error of its own protocol when its client can connect to the process again: after a pause,
//! or when the server is back. When the sandbox is gone the stream breaks off. That makes E2B's SDKs ask whether the
//! sandbox still runs, and only then do all their versions say that it was killed or reached the end of its life. Any
//! other body breaks off too. Over HTTP/2 the reason is an error when the sandbox is gone, and else that the stream was
//! cancelled.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body, Frame, SizeHint};
use tokio::sync::OwnedSemaphorePermit;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

use super::frames::{Farewell, Frames};

/// A body from inside a sandbox.
pub(super) struct GatedBody<B> {
    inner: B,
    closed: Pin<Box<WaitForCancellationFutureOwned>>,
    /// Whether the sandbox is gone, and not paused, once it has stopped.
    gone: CancellationToken,
    /// The server is about to stop.
    leaving: Pin<Box<WaitForCancellationFutureOwned>>,
    /// Of a Connect stream.
    frames: Option<Frames>,
    /// It was ended here: what comes from inside counts no more.
    ended: bool,
    _permit: OwnedSemaphorePermit,
}

/// What ends a body before its own end.
pub(super) struct Stops {
    /// The sandbox has stopped.
    pub(super) closed: CancellationToken,
    /// It has not only been paused. Cancelled before `closed`.
    pub(super) gone: CancellationToken,
    /// The server is about to stop.
    pub(super) leaving: CancellationToken,
}

/// Why a body ended too soon.
#[derive(Debug, thiserror::Error)]
pub(super) enum GatedError {
    /// The cause is what HTTP/2 tells the client.
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

    /// Whether it ends here, and what there is to say about it.
    fn poll_stopped(&mut self, context: &mut Context<'_>) -> Poll<Option<Farewell>> {
        let (closed, leaving) = (self.closed.as_mut().poll(context), self.leaving.as_mut().poll(context));
        match (closed, leaving) {
            (Poll::Ready(()), _) if self.gone.is_cancelled() => Poll::Ready(None),
            (_, Poll::Ready(())) => Poll::Ready(Some(Farewell::ServerStops)),
            (Poll::Ready(()), _) => Poll::Ready(Some(Farewell::SandboxPaused)),
            (Poll::Pending, Poll::Pending) => Poll::Pending,
        }
    }

    /// What is told in place of the rest.
    fn stop(&mut self, farewell: Option<Farewell>) -> Result<Frame<Bytes>, GatedError> {
        self.ended = true;
        let frame = farewell.and_then(|farewell| self.frames.as_ref()?.farewell(farewell));
        match frame {
            Some(frame) => Ok(Frame::data(frame)),
            // Node takes a stream that was cancelled for one that came to its end.
            None if farewell.is_none() => Err(GatedError::Stopped(h2::Reason::INTERNAL_ERROR.into())),
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
        // What has arrived is passed on before the end is: a last line of output is not lost to a race.
        match Pin::new(&mut self.inner).poll_frame(context) {
            Poll::Ready(Some(Ok(frame))) => {
                if let (Some(frames), Some(data)) = (&mut self.frames, frame.data_ref()) {
                    frames.pass(data);
                }
                Poll::Ready(Some(Ok(frame)))
            }
            // The connection into a sandbox breaks when it stops; who hears of that first is chance.
            Poll::Ready(Some(Err(error))) => match self.poll_stopped(context) {
                Poll::Ready(farewell) => Poll::Ready(Some(self.stop(farewell))),
                Poll::Pending => Poll::Ready(Some(Err(error.into()))),
            },
            Poll::Ready(None) => Poll::Ready(None),
            Poll::Pending => self.poll_stopped(context).map(|farewell| Some(self.stop(farewell))),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.ended || self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
