//! A request body that a handler may leave unread. An HTTP/1 connection can carry its next request only after this one
//! was read to its end, and a client may send the next one as soon as it has its response. Therefore the rest is read
//! and discarded. Otherwise a refusal would close the connection, and the client's next request would fail.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt as _;
use hyper::body::{Body, Frame, Incoming, SizeHint};

/// The limit for discarding. Beyond it, the connection closes.
const MAX_BYTES: usize = 256 << 10;
const MAX_WAIT: Duration = Duration::from_secs(2);

pub(super) struct RequestBody(Option<Incoming>);

impl RequestBody {
    pub(super) fn new(body: Incoming) -> Self {
        Self(Some(body))
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        match &mut self.0 {
            Some(body) => Pin::new(body).poll_frame(context),
            None => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.0.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.0.as_ref().map_or_else(|| SizeHint::with_exact(0), Body::size_hint)
    }
}

impl Drop for RequestBody {
    fn drop(&mut self) {
        let Some(rest) = self.0.take().filter(|body| !body.is_end_stream()) else { return };
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(tokio::time::timeout(MAX_WAIT, discard(rest)));
        }
    }
}

async fn discard(mut rest: Incoming) {
    let mut seen = 0;
    while let Some(Ok(frame)) = rest.frame().await {
        seen += frame.data_ref().map_or(0, Bytes::len);
        if seen > MAX_BYTES {
            return;
        }
    }
}
