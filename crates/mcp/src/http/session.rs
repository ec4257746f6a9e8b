//! One session: its sandboxes, its owner, and whether somebody uses it.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Frame, SizeHint};
use http_body_util::combinators::BoxBody;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::record::Record;
use super::refusal::Refusal;
use super::registry::Place;
use super::{Visitor, client_of};
use crate::config::McpConfig;
use crate::sandboxes::Sandboxes;

#[derive(Debug)]
pub(super) struct Session {
    pub(super) owner: String,
    pub(super) sandboxes: Arc<Sandboxes>,
    pub(super) record: Arc<Record>,
    /// Cancelled when the session ends.
    pub(super) ended: CancellationToken,
    /// The newest credentials of the owner: tokens of users are replaced from time to time.
    credentials: Mutex<HeaderMap>,
    activity: Mutex<Activity>,
    keep_alive: JoinHandle<()>,
    /// Counts for the limits while the session exists.
    _place: Place,
}

#[derive(Debug)]
struct Activity {
    requests: usize,
    last: Instant,
}

impl Session {
    pub(super) fn new(visitor: &Visitor, config: McpConfig, record: Arc<Record>, place: Place) -> Arc<Self> {
        let sandboxes = Arc::new(Sandboxes::new(config).with_notebook(Arc::clone(&record) as _));
        Arc::new(Self {
            owner: visitor.owner.clone(),
            record,
            ended: CancellationToken::new(),
            credentials: Mutex::new(visitor.credentials.clone()),
            activity: Mutex::new(Activity { requests: 0, last: Instant::now() }),
            keep_alive: tokio::spawn(Arc::clone(&sandboxes).keep_alive()),
            sandboxes,
            _place: place,
        })
    }

    /// Uses the credentials of this request from now on.
    pub(super) fn renew(&self, visitor: &Visitor) -> Result<(), Refusal> {
        let mut credentials = self.credentials.lock().unwrap_or_else(PoisonError::into_inner);
        if *credentials != visitor.credentials {
            self.sandboxes.renew(client_of(visitor)?);
            credentials.clone_from(&visitor.credentials);
        }
        Ok(())
    }

    pub(super) fn busy(self: &Arc<Self>) -> Busy {
        self.activity().requests += 1;
        Busy(Arc::clone(self))
    }

    pub(super) fn is_idle_for(&self, time: Duration) -> bool {
        let activity = self.activity();
        activity.requests == 0 && activity.last.elapsed() >= time
    }

    /// Stops its calls. The sandboxes stay as they are.
    pub(super) fn leave(&self) {
        self.ended.cancel();
        self.keep_alive.abort();
    }

    /// Kills the session's own sandboxes and forgets it.
    pub(super) async fn end(&self) {
        self.leave();
        self.sandboxes.close().await;
        self.record.remove().await;
    }

    fn activity(&self) -> MutexGuard<'_, Activity> {
        self.activity.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.keep_alive.abort();
    }
}

/// A request of the session, until the last byte of its response.
#[derive(Debug)]
pub(super) struct Busy(Arc<Session>);

impl Drop for Busy {
    fn drop(&mut self) {
        let mut activity = self.0.activity();
        activity.requests -= 1;
        activity.last = Instant::now();
    }
}

/// The body of a response. While it is read, its session is in use.
#[derive(Debug)]
pub struct Body {
    inner: BoxBody<Bytes, Infallible>,
    _busy: Option<Busy>,
}

impl Body {
    pub(super) fn new(inner: BoxBody<Bytes, Infallible>, busy: Busy) -> Self {
        Self { inner, _busy: Some(busy) }
    }

    pub(super) fn plain(inner: BoxBody<Bytes, Infallible>) -> Self {
        Self { inner, _busy: None }
    }
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Pin::new(&mut self.inner).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
