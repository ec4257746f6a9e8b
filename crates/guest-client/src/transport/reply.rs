//! Reads replies into memory.

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use serde::Deserialize;

use super::BoxError;

/// How much of an error page is shown.
const SHOWN: usize = 500;

#[derive(Debug, thiserror::Error)]
#[error("the reply is larger than {0} bytes")]
struct TooLarge(usize);

/// Returns the whole body, if it is not larger than `limit`.
///
/// # Errors
/// If it is larger, or the connection breaks before its end.
pub async fn read_limited(mut body: Incoming, limit: usize) -> Result<Bytes, BoxError> {
    let mut bytes = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame?.into_data() else { continue };
        if bytes.len() + data.len() > limit {
            return Err(TooLarge(limit).into());
        }
        bytes.extend_from_slice(&data);
    }
    Ok(bytes.freeze())
}

/// Returns the message of a refusal: the `message` of its JSON, or else its text.
pub fn message_of(body: &[u8]) -> String {
    #[derive(Deserialize)]
    struct Refusal {
        message: String,
    }
    match serde_json::from_slice::<Refusal>(body) {
        Ok(refusal) => refusal.message,
        Err(_) => String::from_utf8_lossy(body).trim().chars().take(SHOWN).collect(),
    }
}
