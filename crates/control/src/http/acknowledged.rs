//! A sandbox whose id its maker never learned is of no use to anybody: it is removed.
//!
//! A create runs to its end whatever its client does. Then it waits for the answer: when the last byte of that was taken
//! to be sent, the sandbox is its client's. A client that hangs up before makes hyper drop the handler or the answer, and
//! with it the [`Receipt`].

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use http_body::{Frame, SizeHint};
use tokio::sync::oneshot;
use tracing::Instrument;

use crate::lifecycle::{CreateRefusal, Fleet, NewSandbox, Sandbox};

/// Held by whoever answers. Dropped before the answer was sent, it means that nobody knows of the sandbox.
#[derive(Debug)]
pub struct Receipt(oneshot::Sender<()>);

/// Makes a sandbox for a client that has nothing else to find it by.
pub(super) async fn make_for_answer(
    fleet: &Arc<Fleet>,
    wanted: NewSandbox,
) -> Result<(Arc<Sandbox>, Receipt), CreateRefusal> {
    // While its template is being built nothing is begun: a client that hangs up then leaves nothing.
    fleet.wait_for_template(&wanted.template).await?;
    let fleet = Arc::clone(fleet);
    let making = async move { fleet.create(wanted).await };
    let made = until_answered(making, |sandbox| async move { remove(&sandbox).await }).await;
    made.unwrap_or(Err(CreateRefusal::Aborted))
}

/// Runs `making` to its end. If the client is gone by then, or before it has the whole answer, `undo` takes back what was made.
/// None means that the making broke off.
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
    // The create belongs to the request's trace; what comes after it does not keep the request open.
    let request = tracing::Span::current();
    tokio::spawn(async move {
        let made = making.instrument(request).await;
        let kept = made.as_ref().ok().cloned();
        // Nobody may be there to take it any more; then the receipt is gone as well.
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

async fn remove(sandbox: &Sandbox) {
    tracing::info!(sandbox = %sandbox.id(), "its client hung up before it was told of it: removed");
    if let Err(error) = sandbox.kill().await {
        tracing::warn!(sandbox = %sandbox.id(), error = isopod_wire::error_chain(&error), "nobody knows of it, and it is not gone");
    }
}

impl Receipt {
    /// Binds it to the answer.
    pub fn on(self, response: Response) -> Response {
        response.map(|inner| Body::new(ReceiptBody { inner, receipt: Some(self) }))
    }
}

/// A body that says when its last byte was taken.
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
            // Who made it has ended with the server.
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
