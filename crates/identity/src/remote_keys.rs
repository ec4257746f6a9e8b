//! The public keys of an identity service that publishes them at a URL.
//!
//! They are fetched when the first token asks for them, and again when they are old or a token names a key that is not
//! among them: that is how a service changes its keys. Never more often than once a minute, whatever tokens say, and one
//! fetch at a time. A service that does not answer leaves its last keys in force for a day.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::body::Body;
use http::Request;
use isopod_outbound::{Policy, RequestError, Target, Trust, fetch};

use crate::error::KeyError;
use crate::jwks::KeySet;

const TIMEOUT: Duration = Duration::from_secs(5);
/// Key sets have a few kilobytes.
const MAX_BYTES: usize = 1 << 20;
/// Between two fetches.
pub(super) const PACE: Duration = Duration::from_secs(60);
/// After this they are fetched again although they suffice.
const OLD_AFTER: Duration = Duration::from_secs(3600);
/// After this they do not count any more.
const DEAD_AFTER: Duration = Duration::from_secs(24 * 3600);

/// Keys at a URL.
#[derive(Debug)]
pub(super) struct RemoteKeys {
    url: String,
    trust: Trust,
    pace: Duration,
    /// What the last fetch brought. Written by the one who fetches.
    known: Mutex<Option<Fetched>>,
    /// When somebody last tried. Who holds it fetches; others who need new keys wait for what that brings.
    tried: Arc<tokio::sync::Mutex<Option<Instant>>>,
}

#[derive(Clone, Debug)]
struct Fetched {
    keys: Arc<KeySet>,
    at: Instant,
}

impl RemoteKeys {
    pub(super) fn new(url: String, trust: Trust, pace: Duration) -> Self {
        Self { url, trust, pace, known: Mutex::default(), tried: Arc::default() }
    }

    /// The keys to check a token with that names this key.
    pub(super) async fn keys_for(self: &Arc<Self>, kid: Option<&str>) -> Result<Arc<KeySet>, KeyError> {
        if let Some(keys) = self.suffices(kid) {
            return Ok(keys);
        }
        let mut tried = Arc::clone(&self.tried).lock_owned().await;
        // Somebody may have brought them while we waited.
        if let Some(keys) = self.suffices(kid) {
            return Ok(keys);
        }
        let mut failure = None;
        if tried.is_none_or(|at| at.elapsed() >= self.pace) {
            *tried = Some(Instant::now());
            // In a task of its own: who hangs up must not cost everybody the next minute.
            let (remote, held) = (Arc::clone(self), tried);
            let fetching = tokio::spawn(async move {
                let fetched = remote.fetch_and_keep().await;
                drop(held);
                fetched
            });
            failure = fetching.await.ok().and_then(Result::err);
        }
        let known = self.known().filter(|known| known.at.elapsed() < DEAD_AFTER);
        known.map(|known| known.keys).ok_or_else(|| failure.unwrap_or_else(|| KeyError::None(self.url.clone())))
    }

    async fn fetch_and_keep(&self) -> Result<(), KeyError> {
        let fetched = self.fetch().await.inspect_err(|error| {
            tracing::warn!(error = isopod_wire::error_chain(error), "the keys for tokens could not be fetched");
        });
        self.keep(Fetched { keys: Arc::new(fetched?), at: Instant::now() });
        Ok(())
    }

    /// Young keys among which is the one that is asked for.
    fn suffices(&self, kid: Option<&str>) -> Option<Arc<KeySet>> {
        let known = self.known().filter(|known| known.at.elapsed() < OLD_AFTER)?;
        let is_there = known.keys.candidates(kid).next().is_some();
        is_there.then_some(known.keys)
    }

    fn known(&self) -> Option<Fetched> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn keep(&self, fetched: Fetched) {
        *self.known.lock().unwrap_or_else(PoisonError::into_inner) = Some(fetched);
    }

    async fn fetch(&self) -> Result<KeySet, KeyError> {
        let failed = |source| KeyError::Fetch { url: self.url.clone(), source };
        let getting = tokio::time::timeout(TIMEOUT, self.get()).await.map_err(|_| failed(RequestError::Timeout))?;
        KeySet::parse(&getting.map_err(failed)?).ok_or_else(|| KeyError::Parse(self.url.clone()))
    }

    async fn get(&self) -> Result<bytes::Bytes, RequestError> {
        let target = Target::parse(&self.url)?;
        let request = Request::get(&target.path)
            .header("host", &target.authority)
            .header("accept", "application/json")
            .header("user-agent", concat!("isopod/", env!("CARGO_PKG_VERSION")))
            .body(Body::empty())?;
        // The operator named it; it may well be on this machine.
        let policy = Policy::default().and(target.place());
        let (status, body) = fetch(&target, &self.trust, &policy, request, MAX_BYTES).await?;
        if status.is_success() { Ok(body) } else { Err(RequestError::Status(status)) }
    }
}
