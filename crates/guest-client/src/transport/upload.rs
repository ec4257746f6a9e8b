//! Requests with a body of any size. Distinguishes a slow upload from a stuck one: only the server's silence counts,
//! not the source's.

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body::{Body as HttpBody, Frame, SizeHint};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;

use super::{Body, BoxError, Http, TransportError};

impl Http {
    /// Sends a request and reads the reply with `read`. There is no time limit as long as there is progress.
    ///
    /// # Errors
    /// Like [`Self::send`]; [`TransportError::Timeout`] if the server neither took nor sent anything for the client's
    /// timeout; and the errors of `read`.
    pub async fn upload<T, E, Fut>(
        &self,
        request: Request<Body>,
        read: impl FnOnce(Response<Incoming>) -> Fut,
    ) -> Result<T, E>
    where
        E: From<TransportError>,
        Fut: Future<Output = Result<T, E>>,
    {
        let progress = Arc::new(Progress::default());
        let request = request.map(|body| Watched { body, progress: Arc::clone(&progress) }.boxed_unsync());
        let work = pin!(async { read(self.send(request).await?).await });
        let waited = self.timeout();
        tokio::select! {
            result = work => result,
            // A large file may take long, but not without progress.
            () = progress.stalled_for(waited) => {
                Err(TransportError::Timeout { target: self.target().to_owned(), waited }.into())
            }
        }
    }
}

/// How much of a body the connection has requested.
#[derive(Debug, Default)]
struct Progress {
    /// How many pieces were requested. The connection requests the next one when it has room for it.
    asked: AtomicU64,
    /// Whether the source has nothing at the moment.
    source_waits: AtomicBool,
}

impl Progress {
    /// Returns when the server has neither taken nor sent anything for that long.
    async fn stalled_for(&self, limit: Duration) {
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

/// A body that records when it is polled.
struct Watched {
    body: Body,
    progress: Arc<Progress>,
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
