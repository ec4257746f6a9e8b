//! A body that ends when its sandbox or this server stops, and that counts as one of the sandbox's requests until then.
//!
//! A Connect stream then ends with an error of its own protocol, which clients know; any other body breaks off, over
//! HTTP/2 with the word that it was cancelled.

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
    /// The server is about to stop.
    leaving: Pin<Box<WaitForCancellationFutureOwned>>,
    /// Of a Connect stream.
    frames: Option<Frames>,
    /// It was ended here: what comes from inside counts no more.
    ended: bool,
    _permit: OwnedSemaphorePermit,
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
    pub(super) fn new(
        inner: B,
        headers: &HeaderMap,
        gate: CancellationToken,
        leaving: CancellationToken,
        permit: OwnedSemaphorePermit,
    ) -> Self {
        let (closed, leaving) = (Box::pin(gate.cancelled_owned()), Box::pin(leaving.cancelled_owned()));
        Self { inner, closed, leaving, frames: Frames::of(headers), ended: false, _permit: permit }
    }

    /// Why it ends here, if it does.
    fn poll_stopped(&mut self, context: &mut Context<'_>) -> Poll<Farewell> {
        match self.closed.as_mut().poll(context) {
            Poll::Ready(()) => Poll::Ready(Farewell::SandboxStopped),
            Poll::Pending => self.leaving.as_mut().poll(context).map(|()| Farewell::ServerStops),
        }
    }

    /// What is told in place of the rest.
    fn stop(&mut self, farewell: Farewell) -> Result<Frame<Bytes>, GatedError> {
        self.ended = true;
        match self.frames.as_ref().and_then(|frames| frames.farewell(farewell)) {
            Some(frame) => Ok(Frame::data(frame)),
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
