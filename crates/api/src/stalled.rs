//! A request body of the API that times out if the client stops sending. Bodies for sandboxes are exempt, because an
//! input stream may be silent for hours.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tokio::time::{Sleep, sleep};

/// The client has sent nothing for too long.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the client sent nothing of the request body for {0:?}")]
pub(crate) struct BodyTimeout(Duration);

#[derive(Debug)]
pub struct TimeoutBody {
    inner: axum::body::Body,
    timeout: Duration,
    /// Runs while waiting for data.
    waiting: Option<Pin<Box<Sleep>>>,
}

impl TimeoutBody {
    pub fn new(inner: axum::body::Body, timeout: Duration) -> Self {
        Self { inner, timeout, waiting: None }
    }
}

impl Body for TimeoutBody {
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
        let waiting = this.waiting.get_or_insert_with(|| Box::pin(sleep(this.timeout)));
        ready!(waiting.as_mut().poll(context));
        Poll::Ready(Some(Err(axum::Error::new(BodyTimeout(this.timeout)))))
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
