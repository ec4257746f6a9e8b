//! Encodes and signs requests for S3.

use std::time::SystemTime;

use http::request::Parts;
use isopod_outbound::sigv4::Signer;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::{Deserialize, Serialize};

/// The characters that the signature does not encode.
const UNRESERVED: AsciiSet = NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');
const PATH: AsciiSet = UNRESERVED.remove(b'/');

/// The keys to a bucket. `Debug` does not print them.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Credentials {
    pub access_key: String,
    pub secret_key: String,
    pub session_token: Option<String>,
}

impl std::fmt::Debug for Credentials {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Credentials").finish_non_exhaustive()
    }
}

/// A key in the path of a URL.
pub(super) fn escape_path(text: &str) -> String {
    utf8_percent_encode(text, &PATH).to_string()
}

/// A query in the URL and in the signature.
pub(super) fn query(pairs: &[(&str, String)]) -> String {
    let mut encoded: Vec<(String, String)> = pairs
        .iter()
        .map(|(name, value)| {
            (utf8_percent_encode(name, &UNRESERVED).to_string(), utf8_percent_encode(value, &UNRESERVED).to_string())
        })
        .collect();
    encoded.sort();
    encoded.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join("&")
}

/// Adds the signature to a request. All other headers must be complete, and the URL must come from the functions above.
pub(super) fn sign(parts: &mut Parts, keys: &Credentials, region: &str, body_hash: &str, now: SystemTime) {
    let signer = Signer {
        access_key: &keys.access_key,
        secret_key: &keys.secret_key,
        session_token: keys.session_token.as_deref(),
        region,
        service: "s3",
    };
    signer.sign(parts, body_hash, now);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_never_printed() {
        let keys = Credentials { access_key: "visible".into(), secret_key: "hidden".into(), session_token: None };
        assert_eq!(format!("{keys:?}"), "Credentials { .. }");
    }
}
