//! A body that ends with an error when its sandbox stops, and that counts as one of the sandbox's requests until then.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tokio::sync::OwnedSemaphorePermit;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

/// A body from inside a sandbox.
pub(super) struct GatedBody<B> {
    inner: B,
    closed: Pin<Box<WaitForCancellationFutureOwned>>,
    _permit: OwnedSemaphorePermit,
}

/// Why a body ended too soon.
#[derive(Debug, thiserror::Error)]
pub(super) enum GatedError {
    #[error("the sandbox stopped")]
    Stopped,
    #[error("the sandbox closed the connection")]
    Upstream(#[from] hyper::Error),
}

impl<B> GatedBody<B> {
    pub(super) fn new(inner: B, gate: CancellationToken, permit: OwnedSemaphorePermit) -> Self {
        Self { inner, closed: Box::pin(gate.cancelled_owned()), _permit: permit }
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
        // What has arrived is passed on before the end is: a last line of output is not lost to a race.
        match Pin::new(&mut self.inner).poll_frame(context) {
            Poll::Ready(frame) => Poll::Ready(frame.map(|frame| frame.map_err(GatedError::from))),
            Poll::Pending => self.closed.as_mut().poll(context).map(|()| Some(Err(GatedError::Stopped))),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
