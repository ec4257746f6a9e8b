//! Reads the bodies of requests, with limits on size and time.

use std::time::Duration;

use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;

use crate::http::HttpError;

/// How long a small JSON body may take to arrive.
const BODY_TIMEOUT: Duration = Duration::from_secs(30);
/// How much of a refused request's body the guest reads, and for how long.
const MAX_DRAIN: usize = 64 << 10;
const DRAIN_TIMEOUT: Duration = Duration::from_secs(1);
/// The largest JSON body outside of RPC.
pub(crate) const MAX_JSON: usize = 4 << 20;

/// Reads a JSON body. An empty body counts as `{}`.
pub(crate) async fn read_json<T: serde::de::DeserializeOwned>(request: Request<Incoming>) -> Result<T, HttpError> {
    let bytes = read_body(request, MAX_JSON).await?;
    let bytes: &[u8] = if bytes.is_empty() { b"{}" } else { &bytes };
    serde_json::from_slice(bytes)
        .map_err(|error| HttpError::new(StatusCode::BAD_REQUEST, format!("invalid request body: {error}")))
}

/// Reads a whole body of at most this many bytes.
pub(crate) async fn read_body(request: Request<Incoming>, at_most: usize) -> Result<Bytes, HttpError> {
    let body = Limited::new(request.into_body(), at_most);
    let collected = tokio::time::timeout(BODY_TIMEOUT, body.collect()).await;
    match collected {
        Ok(Ok(collected)) => Ok(collected.to_bytes()),
        Ok(Err(error)) if error.is::<http_body_util::LengthLimitError>() => {
            Err(HttpError::new(StatusCode::PAYLOAD_TOO_LARGE, "request body is too large"))
        }
        Ok(Err(error)) => Err(HttpError::new(StatusCode::BAD_REQUEST, format!("cannot read request body: {error}"))),
        Err(_) => Err(HttpError::new(StatusCode::REQUEST_TIMEOUT, "the request body did not arrive in time")),
    }
}

/// Reads the rest of a small body before a refusal. If bytes stay unread, hyper closes the connection after the reply, and a
/// client that has already sent its next request would lose it.
pub(crate) async fn drain(body: Incoming) {
    let _ = tokio::time::timeout(DRAIN_TIMEOUT, Limited::new(body, MAX_DRAIN).collect()).await;
}
