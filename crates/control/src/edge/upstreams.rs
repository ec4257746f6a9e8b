//! Connections into a sandbox. Those to the guest are kept for the next request: an SDK makes many small ones.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::body::Body;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use isopod_wire::node::{DialError, Incarnation, NodeApi, Target};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

/// What one running sandbox has open.
#[derive(Debug)]
pub(crate) struct Upstreams {
    /// Written after each request to the guest; held for a few instructions.
    idle: Mutex<Vec<(SendRequest<Body>, Instant)>>,
    permits: Arc<Semaphore>,
}

const MOST_IDLE: usize = 32;
const IDLE_FOR: Duration = Duration::from_secs(30);

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConnectError {
    #[error(transparent)]
    Dial(#[from] DialError),
    #[error("what listens there does not speak HTTP")]
    Handshake(#[from] hyper::Error),
}

impl Upstreams {
    pub(crate) fn new(at_once: usize) -> Self {
        Self { idle: Mutex::default(), permits: Arc::new(Semaphore::new(at_once)) }
    }

    /// One of the requests that the sandbox may have at the same time.
    pub(super) fn permit(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.permits).try_acquire_owned().ok()
    }

    /// A kept connection that is still good.
    pub(super) fn take_idle(&self) -> Option<SendRequest<Body>> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some((sender, since)) = idle.pop() {
            if since.elapsed() < IDLE_FOR && sender.is_ready() {
                return Some(sender);
            }
        }
        None
    }

    pub(super) fn keep(&self, sender: SendRequest<Body>) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < MOST_IDLE {
            idle.push((sender, Instant::now()));
        }
    }
}

/// Opens a connection. It ends with the sandbox's run, or when nobody holds its sender any more.
pub(super) async fn connect(
    node: &dyn NodeApi,
    incarnation: &Incarnation,
    target: Target,
    gate: &CancellationToken,
) -> Result<SendRequest<Body>, ConnectError> {
    let stream = node.dial(incarnation, target).await?;
    let (sender, connection) = handshake(TokioIo::new(stream)).await?;
    let gate = gate.clone();
    tokio::spawn(async move {
        tokio::select! {
            () = gate.cancelled() => {}
            ended = connection.with_upgrades() => {
                if let Err(error) = ended {
                    tracing::debug!(error = crate::chain(&error), "a connection into a sandbox broke");
                }
            }
        }
    });
    Ok(sender)
}
