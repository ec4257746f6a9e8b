//! A body that ends when its sandbox or this server stops. Until then, it counts as one of the sandbox's requests.
//!
//! A Connect stream ends with an error of its own protocol if its client can connect to the process again: after a
//! pause, or when the server is back. When the sandbox is gone, the stream breaks off. That makes E2B's SDKs check
//! whether the sandbox still runs, and only then do all their versions report that it was killed or timed out
//! (`break_off.rs`). Any other body breaks off too. Over HTTP/2, the error code is INTERNAL_ERROR if the sandbox is
//! gone, and CANCEL otherwise.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body, Frame, SizeHint};
use tokio::sync::OwnedSemaphorePermit;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

use super::break_off::{BreakOff, Client};
use super::frames::{Frames, StreamEnd};

/// A response body from inside a sandbox.
pub(super) struct GatedBody<B> {
    inner: B,
    closed: Pin<Box<WaitForCancellationFutureOwned>>,
    /// Cancelled if the sandbox is gone, as opposed to paused.
    gone: CancellationToken,
    /// Fires when the server is about to stop.
    leaving: Pin<Box<WaitForCancellationFutureOwned>>,
    /// Set for a Connect stream.
    frames: Option<Frames>,
    client: Option<Client>,
    /// Whether the body was ended here. Nothing more from inside is passed on.
    ended: bool,
    /// The error that the body fails with, once its client is ready for that.
    failing: Option<(GatedError, Option<BreakOff>)>,
    _permit: OwnedSemaphorePermit,
}

/// The events that end a body early.
pub(super) struct Stops {
    /// The sandbox has stopped.
    pub(super) closed: CancellationToken,
    /// The sandbox is gone, as opposed to paused. Cancelled before `closed`.
    pub(super) gone: CancellationToken,
    /// The server is about to stop.
    pub(super) leaving: CancellationToken,
}

/// Why a body ended early.
#[derive(Debug, thiserror::Error)]
pub(super) enum GatedError {
    /// The cause is the error that HTTP/2 sends to the client.
    #[error("the sandbox or the server stopped")]
    Stopped(#[source] h2::Error),
    #[error("the sandbox closed the connection")]
    Upstream(#[from] hyper::Error),
}

impl<B> GatedBody<B> {
    pub(super) fn new(
        inner: B,
        headers: &HeaderMap,
        client: Option<Client>,
        stops: Stops,
        permit: OwnedSemaphorePermit,
    ) -> Self {
        let Stops { closed, gone, leaving } = stops;
        let (closed, leaving) = (Box::pin(closed.cancelled_owned()), Box::pin(leaving.cancelled_owned()));
        let frames = Frames::of(headers);
        // The head.
        client.iter().for_each(Client::hand_out);
        Self { inner, closed, gone, leaving, frames, client, ended: false, failing: None, _permit: permit }
    }

    /// Ready if the body ends here, with the reason to send if there is one.
    fn poll_stopped(&mut self, context: &mut Context<'_>) -> Poll<Option<StreamEnd>> {
        let (closed, leaving) = (self.closed.as_mut().poll(context), self.leaving.as_mut().poll(context));
        match (closed, leaving) {
            (Poll::Ready(()), _) if self.gone.is_cancelled() => Poll::Ready(None),
            (_, Poll::Ready(())) => Poll::Ready(Some(StreamEnd::ServerStops)),
            (Poll::Ready(()), _) => Poll::Ready(Some(StreamEnd::SandboxPaused)),
            (Poll::Pending, Poll::Pending) => Poll::Pending,
        }
    }

    /// Returns what the client gets in place of the rest.
    fn stop(&mut self, end: Option<StreamEnd>, context: &mut Context<'_>) -> PolledFrame {
        let frame = end.and_then(|end| self.frames.as_ref()?.end_frame(end));
        if let Some(frame) = frame {
            self.ended = true;
            return Poll::Ready(Some(Ok(Frame::data(frame))));
        }
        // Node.js takes a cancelled stream for a complete one.
        let reason = if end.is_none() { h2::Reason::INTERNAL_ERROR } else { h2::Reason::CANCEL };
        self.fail(GatedError::Stopped(reason.into()), end.is_none(), context)
    }

    /// Fails with this error when the client has what was passed on.
    fn fail(&mut self, error: GatedError, may_reset: bool, context: &mut Context<'_>) -> PolledFrame {
        // Other clients, such as those of files, take a reset for an error that they do not know.
        let may_reset = may_reset && self.frames.is_some();
        let break_off = self.client.as_ref().map(|client| client.break_off(may_reset));
        self.failing = Some((error, break_off));
        self.poll_failing(context)
    }

    fn poll_failing(&mut self, context: &mut Context<'_>) -> PolledFrame {
        if let Some((_, Some(break_off))) = &mut self.failing {
            std::task::ready!(break_off.poll_ready(context));
        }
        self.ended = true;
        Poll::Ready(self.failing.take().map(|(error, _)| Err(error)))
    }
}

type PolledFrame = Poll<Option<Result<Frame<Bytes>, GatedError>>>;

impl<B> Body for GatedBody<B>
where
    B: Body<Data = Bytes, Error = hyper::Error> + Unpin,
{
    type Data = Bytes;
    type Error = GatedError;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> PolledFrame {
        if self.ended || self.failing.is_some() {
            return self.poll_failing(context);
        }
        // Pass on what has arrived before ending the stream, so that a last line of output is not lost to a race.
        match Pin::new(&mut self.inner).poll_frame(context) {
            Poll::Ready(Some(Ok(frame))) => {
                if let (Some(frames), Some(data)) = (&mut self.frames, frame.data_ref()) {
                    frames.pass(data);
                }
                self.client.iter().for_each(Client::hand_out);
                Poll::Ready(Some(Ok(frame)))
            }
            // The connection into a sandbox breaks when it stops, and that may be noticed first.
            Poll::Ready(Some(Err(error))) => match self.poll_stopped(context) {
                Poll::Ready(end) => self.stop(end, context),
                Poll::Pending => self.fail(error.into(), true, context),
            },
            Poll::Ready(None) => Poll::Ready(None),
            Poll::Pending => {
                let end = std::task::ready!(self.poll_stopped(context));
                self.stop(end, context)
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.ended || self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use futures::StreamExt as _;
    use http_body_util::{BodyExt as _, StreamBody};
    use tokio::net::{TcpListener, TcpStream};
    use tokio::sync::Semaphore;

    use super::*;
    use crate::delivery::{ClientConnection, Outbox};

    /// HTTP asks for the next frame before it has written this one, and drops it when that is an error.
    #[tokio::test]
    async fn a_body_fails_only_after_what_it_passed_on_was_written() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let socket = Arc::new(client.into_split().1);
        let outbox = Arc::new(Outbox::new(&socket, |_| Ok(0)));
        let connection = ClientConnection { outbox: Arc::clone(&outbox), is_http1: true, is_encrypted: false };
        let gone = CancellationToken::new();
        let stops = Stops { closed: gone.clone(), gone: gone.clone(), leaving: CancellationToken::new() };
        let permit = Arc::new(Semaphore::new(1)).acquire_owned().await.unwrap();
        let last = futures::stream::iter([Ok(Frame::data(Bytes::from_static(b"last line")))]);
        let inner = StreamBody::new(last.chain(futures::stream::pending()));
        let receiver = Some(Client::of(&connection, &HeaderMap::new()));
        let mut body = GatedBody::new(inner, &HeaderMap::new(), receiver, stops, permit);
        gone.cancel();
        assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), "last line");
        assert!(futures::poll!(body.frame()).is_pending());
        outbox.flushed();
        assert!(body.frame().await.unwrap().is_err());
        assert!(body.frame().await.is_none());
    }
}
