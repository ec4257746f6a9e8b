//! Removes a new resource if its client never got the response with its id, because nobody could use it.
//!
//! A create operation runs to its end whatever its client does, and then waits for the response. When the last byte of
//! the response is sent, the resource belongs to the client. If the client hangs up earlier, hyper drops the handler or
//! the response, and with it the [`Receipt`].

use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use http_body::{Frame, SizeHint};
use tokio::sync::oneshot;
use tracing::Instrument;

/// Held by the handler. If it is dropped before the response was sent, the client does not know the sandbox.
#[derive(Debug)]
pub struct Receipt(oneshot::Sender<()>);

/// Runs `making` to its end. If the client hangs up before it has the whole response, `undo` removes the result.
/// Returns `None` if `making` panicked.
pub async fn until_answered<T, E, U>(
    making: impl Future<Output = Result<T, E>> + Send + 'static,
    undo: impl FnOnce(T) -> U + Send + 'static,
) -> Option<Result<(T, Receipt), E>>
where
    T: Clone + Send + 'static,
    E: Send + 'static,
    U: Future<Output = ()> + Send,
{
    let (sender, sent) = oneshot::channel();
    let (hand_over, handed_over) = oneshot::channel();
    // The create operation belongs to the request's trace. What follows it does not keep the request open.
    let request = tracing::Span::current();
    tokio::spawn(async move {
        let made = making.instrument(request).await;
        let kept = made.as_ref().ok().cloned();
        // If the handler is gone, the receipt is gone as well.
        let _ = hand_over.send(made);
        if let Some(kept) = kept
            && sent.await.is_err()
        {
            undo(kept).await;
        }
    });
    let receipt = Receipt(sender);
    let made = handed_over.await.ok()?;
    Some(made.map(|made| (made, receipt)))
}

impl Receipt {
    /// Attaches it to the response.
    pub fn on(self, response: Response) -> Response {
        response.map(|inner| Body::new(ReceiptBody { inner, receipt: Some(self) }))
    }
}

/// A body that reports when its last byte was read.
struct ReceiptBody {
    inner: Body,
    receipt: Option<Receipt>,
}

impl http_body::Body for ReceiptBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let polled = Pin::new(&mut self.inner).poll_frame(context);
        let is_over = matches!(polled, Poll::Ready(None)) || (polled.is_ready() && self.inner.is_end_stream());
        if is_over && let Some(Receipt(sender)) = self.receipt.take() {
            // The waiting task may have ended with the server.
            let _ = sender.send(());
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
