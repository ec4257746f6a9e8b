//! The connections that one running sandbox has open. Those to its guest are kept for the next request: an SDK makes many
//! small ones.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::body::Body;
use hyper::client::conn::http1::SendRequest;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// What one running sandbox has open.
#[derive(Debug)]
pub(crate) struct Upstreams {
    /// Written after each request to the guest; held for a few instructions.
    idle: Mutex<Vec<(SendRequest<Body>, Instant)>>,
    permits: Arc<Semaphore>,
    /// How long a connection is kept.
    idle_for: Duration,
}

/// How many connections to one guest are kept for the next request.
const MAX_IDLE: usize = 16;

impl Upstreams {
    pub(crate) fn new(at_once: usize, idle_for: Duration) -> Self {
        Self { idle: Mutex::default(), permits: Arc::new(Semaphore::new(at_once)), idle_for }
    }

    /// One of the requests that the sandbox may have at the same time.
    pub(crate) fn permit(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.permits).try_acquire_owned().ok()
    }

    /// A kept connection that is still good.
    pub(crate) fn take_idle(&self) -> Option<SendRequest<Body>> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some((sender, since)) = idle.pop() {
            if since.elapsed() < self.idle_for && sender.is_ready() {
                return Some(sender);
            }
        }
        None
    }

    pub(crate) fn keep(&self, sender: SendRequest<Body>) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < MAX_IDLE {
            idle.push((sender, Instant::now()));
        }
    }

    /// Closes connections that nobody has used for long enough.
    pub(crate) fn close_idle(&self) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.retain(|(sender, since)| since.elapsed() < self.idle_for && sender.is_ready());
    }
}
