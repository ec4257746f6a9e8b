//! The connections of one running sandbox. Connections to its guest are kept for the next request, because an SDK makes
//! many small ones.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::body::Body;
use hyper::client::conn::http1::SendRequest;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The open connections of one running sandbox.
#[derive(Debug)]
pub(crate) struct Upstreams {
    /// Locked for a few instructions, after each request to the guest.
    idle: Mutex<Vec<(SendRequest<Body>, Instant)>>,
    permits: Arc<Semaphore>,
    /// How long an idle connection is kept.
    idle_for: Duration,
}

/// The maximum number of idle connections to one guest.
const MAX_IDLE: usize = 16;

impl Upstreams {
    pub(crate) fn new(at_once: usize, idle_for: Duration) -> Self {
        Self { idle: Mutex::default(), permits: Arc::new(Semaphore::new(at_once)), idle_for }
    }

    /// Returns a permit for a request, or `None` if the sandbox has too many.
    pub(crate) fn permit(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.permits).try_acquire_owned().ok()
    }

    /// Returns an idle connection that is still open.
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

    /// Closes connections that were idle for too long.
    pub(crate) fn close_idle(&self) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.retain(|(sender, since)| since.elapsed() < self.idle_for && sender.is_ready());
    }
}
