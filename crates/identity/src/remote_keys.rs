//! The public keys of an identity service that publishes them at a URL.
//!
//! They are fetched when the first token needs them, and again when they are old or a token names an unknown key,
//! because that is how a service rotates its keys. At most once a minute, whatever tokens name, and only one fetch at a
//! time. If the service does not answer, its last keys stay valid for a day.

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
/// The minimum time between two fetches.
pub(super) const MIN_INTERVAL: Duration = Duration::from_secs(60);
/// After this time, the keys are fetched again even if they suffice.
const REFRESH_AFTER: Duration = Duration::from_secs(3600);
/// After this time, the keys are not used any more.
const INVALID_AFTER: Duration = Duration::from_secs(24 * 3600);

#[derive(Debug)]
pub(super) struct RemoteKeys {
    url: String,
    trust: Trust,
    min_interval: Duration,
    /// The result of the last fetch. Written by the fetching task.
    known: Mutex<Option<Fetched>>,
    /// The time of the last attempt. The task that holds the lock fetches, and others that need new keys wait for its
    /// result.
    tried: Arc<tokio::sync::Mutex<Option<Instant>>>,
}

#[derive(Clone, Debug)]
struct Fetched {
    keys: Arc<KeySet>,
    at: Instant,
}

impl RemoteKeys {
    pub(super) fn new(url: String, trust: Trust, min_interval: Duration) -> Self {
        Self { url, trust, min_interval, known: Mutex::default(), tried: Arc::default() }
    }

    /// Returns the keys to verify a token that names this key.
    pub(super) async fn keys_for(self: &Arc<Self>, kid: Option<&str>) -> Result<Arc<KeySet>, KeyError> {
        if let Some(keys) = self.fresh_keys(kid) {
            return Ok(keys);
        }
        let mut tried = Arc::clone(&self.tried).lock_owned().await;
        // Another task may have fetched them while we waited.
        if let Some(keys) = self.fresh_keys(kid) {
            return Ok(keys);
        }
        let mut failure = None;
        if tried.is_none_or(|at| at.elapsed() >= self.min_interval) {
            *tried = Some(Instant::now());
            // In a task of its own, so that a disconnected client does not waste the only fetch of the next minute.
            let (remote, held) = (Arc::clone(self), tried);
            let fetching = tokio::spawn(async move {
                let fetched = remote.fetch_and_keep().await;
                drop(held);
                fetched
            });
            failure = fetching.await.ok().and_then(Result::err);
        }
        let known = self.known().filter(|known| known.at.elapsed() < INVALID_AFTER);
        known.map(|known| known.keys).ok_or_else(|| failure.unwrap_or_else(|| KeyError::None(self.url.clone())))
    }

    async fn fetch_and_keep(&self) -> Result<(), KeyError> {
        let fetched = self.fetch().await.inspect_err(|error| {
            tracing::warn!(error = isopod_wire::error_chain(error), "could not fetch the keys for tokens");
        });
        self.keep(Fetched { keys: Arc::new(fetched?), at: Instant::now() });
        Ok(())
    }

    /// Returns fresh keys that include the requested one.
    fn fresh_keys(&self, kid: Option<&str>) -> Option<Arc<KeySet>> {
        let known = self.known().filter(|known| known.at.elapsed() < REFRESH_AFTER)?;
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
        // The operator named the URL, and it may be on this machine.
        let policy = Policy::default().and(target.place());
        let (status, body) = fetch(&target, &self.trust, &policy, request, MAX_BYTES).await?;
        if status.is_success() { Ok(body) } else { Err(RequestError::Status(status)) }
    }
}
