//! `X-RARO-CLIENT-ID`: whose library is meant within a team (S1.46).

use std::sync::Arc;

use axum::extract::FromRequestParts;
use http::request::Parts;

use super::super::error::ApiError;
use crate::app::App;
use crate::sessions::PUBLIC;

/// A client of the team; `public` where none is named.
#[derive(Clone, Debug)]
pub(in crate::http) struct ClientId(pub(in crate::http) String);

const HEADER: &str = "x-raro-client-id";
const LONGEST: usize = 128;

impl FromRequestParts<Arc<App>> for ClientId {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &Arc<App>) -> Result<Self, ApiError> {
        let Some(value) = parts.headers.get(HEADER) else { return Ok(Self(PUBLIC.to_owned())) };
        let is_fine = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
        let text = value.to_str().unwrap_or_default();
        match !text.is_empty() && text.len() <= LONGEST && text.bytes().all(is_fine) {
            true => Ok(Self(text.to_owned())),
            false => Err(ApiError::bad_request("X-RARO-CLIENT-ID must have 1 to 128 letters, digits or dashes")),
        }
    }
}
