//! `Idempotency-Key`: a create that is sent again finds what the first one made.

use std::sync::Arc;
use std::time::Duration;

use http::HeaderMap;
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use super::error::ApiError;
use super::new_sandbox::Defaults;
use super::sandbox_create::make;
use crate::app::App;
use crate::lifecycle::{NewSandbox, Sandbox};
use crate::store::Claim;

/// A create that may have been sent before.
#[derive(Debug)]
pub(super) struct Attempt {
    key: String,
    request: [u8; 32],
}

impl Attempt {
    /// `None` without a key.
    pub(super) fn from_request(
        headers: &HeaderMap,
        body: &Value,
        defaults: Defaults,
    ) -> Result<Option<Self>, ApiError> {
        let Some(key) = headers.get("idempotency-key") else { return Ok(None) };
        let is_allowed = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || *byte == b'-';
        let bytes = key.as_bytes();
        if bytes.is_empty() || bytes.len() > 255 || !bytes.iter().all(is_allowed) {
            return Err(ApiError::bad_request("Idempotency-Key must be 1 to 255 of a-z, 0-9 and -"));
        }
        // Objects are printed with sorted keys: the same request gives the same text.
        let text = format!("{defaults:?} {body}");
        let key = String::from_utf8_lossy(bytes).into_owned();
        Ok(Some(Self { key, request: Sha256::digest(text).into() }))
    }

    /// Makes the sandbox if this is the first attempt, and finds it if not.
    pub(super) async fn make_once(self, app: &Arc<App>, wanted: NewSandbox) -> Result<Arc<Sandbox>, ApiError> {
        let store = &app.fleet.store;
        match store.claim_key(&wanted.team, &self.key, &self.request).await? {
            Claim::First => {
                let app = Arc::clone(app);
                // In a task of its own: a client that goes away must not leave its key half used.
                let making = tokio::spawn(async move { self.make_first(&app, wanted).await });
                making.await.unwrap_or_else(|_| Err(crate::lifecycle::CreateRefusal::Aborted.into()))
            }
            Claim::Done(id) => app
                .fleet
                .find_of(&wanted.team, &id)
                .ok_or_else(|| ApiError::conflict(format!("sandbox {id}, which this Idempotency-Key made, has ended"))),
            Claim::Unfinished => {
                let message = "a request with this Idempotency-Key is under way";
                let error = ApiError::conflict(message).with_code("idempotency_in_progress");
                Err(error.retry_in(Duration::from_secs(1)))
            }
            Claim::Mismatch => {
                let message = "this Idempotency-Key was used for another request";
                Err(ApiError::conflict(message).with_code("idempotency_request_mismatch"))
            }
        }
    }

    async fn make_first(self, app: &Arc<App>, mut wanted: NewSandbox) -> Result<Arc<Sandbox>, ApiError> {
        let (team, store) = (wanted.team.clone(), &app.fleet.store);
        wanted.idempotency_key = Some(self.key.clone());
        match make(&app.fleet, wanted).await {
            Ok(sandbox) => {
                store.finish_key(&team, &self.key, sandbox.id()).await?;
                Ok(sandbox)
            }
            Err(refusal) => {
                store.release_key(&team, &self.key).await?;
                Err(refusal.into())
            }
        }
    }
}
