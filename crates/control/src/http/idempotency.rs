//! `Idempotency-Key`: a repeated create request returns the sandbox of the first one.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::FromRequestParts;
use http::request::Parts;
use isopod_api::{ApiError, DescribeInput, Description, Param};
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use super::app::App;
use super::new_sandbox::Defaults;
use super::sandbox_create::make;
use crate::lifecycle::{self, NewSandbox, OnceRefusal, Sandbox};

/// The key that the client chose for its request, if any.
#[derive(Debug)]
pub(super) struct IdempotencyKey(Option<String>);

impl<S: Sync> FromRequestParts<S> for IdempotencyKey {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        let Some(key) = parts.headers.get("idempotency-key") else { return Ok(Self(None)) };
        let is_allowed = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || *byte == b'-';
        let bytes = key.as_bytes();
        if bytes.is_empty() || bytes.len() > 255 || !bytes.iter().all(is_allowed) {
            return Err(ApiError::bad_request("Idempotency-Key must be 1 to 255 of a-z, 0-9 and -"));
        }
        Ok(Self(Some(String::from_utf8_lossy(bytes).into_owned())))
    }
}

impl DescribeInput for IdempotencyKey {
    fn describe(operation: &mut Description) {
        let about = "requests with the same key and body return the same sandbox";
        operation.header(&Param::pattern("Idempotency-Key", "^[a-z0-9-]{1,255}$").about(about));
        operation.may_refuse(&[409]);
    }
}

/// A create request that may have been sent before.
#[derive(Debug)]
pub(super) struct Attempt {
    pub key: String,
    request: [u8; 32],
}

impl Attempt {
    /// Returns `None` without a key.
    pub(super) fn of(IdempotencyKey(key): IdempotencyKey, body: &Value, defaults: Defaults) -> Option<Self> {
        let key = key?;
        // Keys of objects are sorted, so equal requests have equal text.
        let text = format!("{defaults:?} {body}");
        Some(Self { key, request: Sha256::digest(text).into() })
    }

    /// Creates the sandbox on the first attempt, and finds it on later ones.
    pub(super) async fn create_once(self, app: &Arc<App>, mut wanted: NewSandbox) -> Result<Arc<Sandbox>, ApiError> {
        wanted.idempotency_key = Some(self.key.clone());
        let attempt = lifecycle::Attempt { team: wanted.team.clone(), key: self.key, request: self.request };
        let fleet = Arc::clone(&app.fleet);
        let making = async move { make(&fleet, wanted).await };
        app.fleet.once(attempt, making).await.map_err(ApiError::from)
    }
}

impl From<OnceRefusal> for ApiError {
    fn from(refusal: OnceRefusal) -> Self {
        let message = refusal.to_string();
        match refusal {
            OnceRefusal::Create(refusal) => refusal.into(),
            OnceRefusal::Store(error) => error.into(),
            OnceRefusal::Ended(_) => Self::conflict(message),
            OnceRefusal::InProgress => {
                Self::conflict(message).with_code("idempotency_in_progress").retry_in(Duration::from_secs(1))
            }
            OnceRefusal::Mismatch => Self::conflict(message).with_code("idempotency_request_mismatch"),
        }
    }
}
