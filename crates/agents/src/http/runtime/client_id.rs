//! `X-RARO-CLIENT-ID`: selects a library within a team.

use std::sync::Arc;

use axum::extract::FromRequestParts;
use http::request::Parts;
use isopod_api::{ApiError, DescribeInput, Description, Param};

use crate::Agents;
use crate::sessions::PUBLIC;

/// A client of the team. The default is `public`.
#[derive(Clone, Debug)]
pub(in crate::http) struct ClientId(pub(in crate::http) String);

const HEADER: &str = "x-raro-client-id";
const MAX_LENGTH: usize = 128;

impl DescribeInput for ClientId {
    fn describe(operation: &mut Description) {
        let client = Param::pattern("X-RARO-CLIENT-ID", "^[A-Za-z0-9-]{1,128}$");
        operation.header(&client.about("whose library; public if not said"));
    }
}

impl FromRequestParts<Arc<Agents>> for ClientId {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &Arc<Agents>) -> Result<Self, ApiError> {
        let Some(value) = parts.headers.get(HEADER) else { return Ok(Self(PUBLIC.to_owned())) };
        let is_fine = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
        let text = value.to_str().unwrap_or_default();
        match !text.is_empty() && text.len() <= MAX_LENGTH && text.bytes().all(is_fine) {
            true => Ok(Self(text.to_owned())),
            false => Err(ApiError::bad_request("X-RARO-CLIENT-ID must have 1 to 128 letters, digits or dashes")),
        }
    }
}
