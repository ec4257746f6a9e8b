//! The body of a request on its way into a sandbox. If the request is refused, the rest is read and dropped for a while.
//!
//! Otherwise, the connection would close while the client still sends. The kernel answers that with a reset, which takes
//! the response from the client, and E2B's SDKs report a fault of the network instead of a sandbox that was killed.
//! Python SDKs up to 2.36 read no response before they have sent everything.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes};
use http::Request;
use http_body::{Body as _, Frame, SizeHint};
use http_body_util::BodyExt as _;
use tokio::sync::Semaphore;

const MAX_DRAIN: Duration = Duration::from_secs(10);
/// How many at a time, because requests of anybody can be refused. More are closed at once.
static DRAINS: Semaphore = Semaphore::const_new(64);

/// A handle on a request's body.
#[derive(Debug)]
pub struct Upload(Arc<Mutex<State>>);

/// The body that is sent into the sandbox.
struct Forwarded(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    body: Body,
    /// Whether the body is no longer for the sandbox.
    is_refused: bool,
}

#[derive(Debug, thiserror::Error)]
#[error("the request was refused before its body was complete")]
struct Refused;

impl Upload {
    /// Returns a handle on the request's body, if it has one.
    pub fn of(request: &mut Request<Body>) -> Option<Self> {
        if request.body().is_end_stream() {
            return None;
        }
        let body = std::mem::take(request.body_mut());
        let state = Arc::new(Mutex::new(State { body, is_refused: false }));
        *request.body_mut() = Body::new(Forwarded(Arc::clone(&state)));
        Some(Self(state))
    }

    /// Reads the rest, so that the client can read its response. Nothing more goes into the sandbox.
    pub fn drain(self) {
        let body = {
            let mut state = lock(&self.0);
            state.is_refused = true;
            std::mem::take(&mut state.body)
        };
        if let Ok(permit) = DRAINS.try_acquire() {
            tokio::spawn(async move {
                let _permit = permit;
                // What is not read by then is not read at all.
                let _ = tokio::time::timeout(MAX_DRAIN, drop_frames(body)).await;
            });
        }
    }
}

async fn drop_frames(mut body: Body) {
    while let Some(Ok(_)) = body.frame().await {}
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl http_body::Body for Forwarded {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let mut state = lock(&self.0);
        if state.is_refused {
            // The sandbox must not take what it has for all of it.
            return Poll::Ready(Some(Err(axum::Error::new(Refused))));
        }
        Pin::new(&mut state.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        let state = lock(&self.0);
        !state.is_refused && state.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        lock(&self.0).body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_body_passes_unchanged_and_is_never_complete_after_a_refusal() {
        let mut request = Request::new(Body::from("all of it"));
        let _upload = Upload::of(&mut request).unwrap();
        assert_eq!(request.body().size_hint().exact(), Some(9));
        assert_eq!(request.into_body().collect().await.unwrap().to_bytes(), "all of it");

        let mut request = Request::new(Body::from("all of it"));
        Upload::of(&mut request).unwrap().drain();
        assert!(request.into_body().collect().await.is_err());

        assert!(Upload::of(&mut Request::new(Body::empty())).is_none());
    }
}
