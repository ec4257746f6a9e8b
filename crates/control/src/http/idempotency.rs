//! `Idempotency-Key`: a create that is sent again finds what the first one made.

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

/// What the client calls its create, if it has a name for it.
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
        let about = "the same key and body give the same sandbox";
        operation.header(&Param::pattern("Idempotency-Key", "^[a-z0-9-]{1,255}$").about(about));
        operation.may_refuse(&[409]);
    }
}

/// A create that may have been sent before.
#[derive(Debug)]
pub(super) struct Attempt {
    pub key: String,
    request: [u8; 32],
}

impl Attempt {
    /// `None` without a key.
    pub(super) fn of(IdempotencyKey(key): IdempotencyKey, body: &Value, defaults: Defaults) -> Option<Self> {
        let key = key?;
        // Objects are printed with sorted keys: the same request gives the same text.
        let text = format!("{defaults:?} {body}");
        Some(Self { key, request: Sha256::digest(text).into() })
    }

    /// Makes the sandbox if this is the first attempt, and finds it if not.
    pub(super) async fn make_once(self, app: &Arc<App>, mut wanted: NewSandbox) -> Result<Arc<Sandbox>, ApiError> {
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
