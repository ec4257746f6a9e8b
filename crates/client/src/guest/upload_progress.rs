//! Tells an upload that is slow from one that is stuck: only the server's silence counts, not the source's.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};

use crate::transport::{Body, BoxError};

/// What the connection has asked of a body.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    /// How many pieces were asked for. The connection asks for the next one when there is room for it.
    asked: AtomicU64,
    /// The source has nothing at the moment.
    source_waits: AtomicBool,
}

impl Progress {
    /// Returns when the server has taken nothing, and said nothing, for that long.
    pub(crate) async fn stalled_for(&self, limit: Duration) {
        let mut before = self.asked.load(Ordering::Relaxed);
        loop {
            tokio::time::sleep(limit).await;
            let now = self.asked.load(Ordering::Relaxed);
            if now == before && !self.source_waits.load(Ordering::Relaxed) {
                return;
            }
            before = now;
        }
    }
}

/// A body that notes when it is asked.
pub(crate) struct Watched {
    body: Body,
    progress: Arc<Progress>,
}

impl Watched {
    pub(crate) fn new(body: Body, progress: Arc<Progress>) -> Self {
        Self { body, progress }
    }
}

impl HttpBody for Watched {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let polled = Pin::new(&mut self.body).poll_frame(cx);
        self.progress.asked.fetch_add(1, Ordering::Relaxed);
        self.progress.source_waits.store(polled.is_pending(), Ordering::Relaxed);
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
