//! A request body of the API that comes to its end or is given up. Bodies for sandboxes are not the API's: an input stream
//! may be silent for hours.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tokio::time::{Sleep, sleep};

/// The client has sent nothing for too long.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("nothing of the request body came for {0:?}")]
pub(crate) struct BodyStalled(Duration);

#[derive(Debug)]
pub struct SteadyBody {
    inner: axum::body::Body,
    patience: Duration,
    /// Runs while a piece is waited for.
    waiting: Option<Pin<Box<Sleep>>>,
}

impl SteadyBody {
    pub fn new(inner: axum::body::Body, patience: Duration) -> Self {
        Self { inner, patience, waiting: None }
    }
}

impl Body for SteadyBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let this = &mut *self;
        if let Poll::Ready(frame) = Pin::new(&mut this.inner).poll_frame(context) {
            this.waiting = None;
            return Poll::Ready(frame);
        }
        let waiting = this.waiting.get_or_insert_with(|| Box::pin(sleep(this.patience)));
        ready!(waiting.as_mut().poll(context));
        Poll::Ready(Some(Err(axum::Error::new(BodyStalled(this.patience)))))
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
