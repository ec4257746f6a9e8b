//! Signs a request as S3 wants it (AWS Signature Version 4, signature in the header).

use std::fmt::Write as _;
use std::time::SystemTime;

use http::HeaderValue;
use http::header::AUTHORIZATION;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use ring::{digest, hmac};
use serde::{Deserialize, Serialize};
use time::OffsetDateTime;

/// The characters that the signature leaves as they are.
const UNRESERVED: AsciiSet = NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');
const PATH: AsciiSet = UNRESERVED.remove(b'/');

/// Keys to a bucket. They are never printed.
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

/// A key as it stands in the path of a URL.
pub(super) fn escape_path(text: &str) -> String {
    utf8_percent_encode(text, &PATH).to_string()
}

/// A query as it stands in the URL and in the signature.
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

/// The hash of a body, as the signature names it.
pub(super) fn hash(body: &[u8]) -> String {
    hex(digest::digest(&digest::SHA256, body).as_ref())
}

/// Adds the signature to a request whose other headers are complete. The URL was made by the functions above.
pub(super) fn sign(
    parts: &mut http::request::Parts,
    keys: &Credentials,
    region: &str,
    body_hash: &str,
    now: SystemTime,
) {
    let now = OffsetDateTime::from(now);
    let (year, month, date) = now.to_calendar_date();
    let (hour, minute, second) = now.to_hms();
    let stamp = format!("{year:04}{:02}{date:02}T{hour:02}{minute:02}{second:02}Z", u8::from(month));
    let day = stamp[..8].to_owned();
    insert(parts, "x-amz-date", &stamp);
    insert(parts, "x-amz-content-sha256", body_hash);
    if let Some(token) = &keys.session_token {
        insert(parts, "x-amz-security-token", token);
    }
    let (names, headers) = canonical_headers(parts);
    let uri = &parts.uri;
    let request = format!(
        "{}\n{}\n{}\n{headers}\n{names}\n{body_hash}",
        parts.method,
        uri.path(),
        uri.query().unwrap_or_default()
    );
    let scope = format!("{day}/{region}/s3/aws4_request");
    let text = format!("AWS4-HMAC-SHA256\n{stamp}\n{scope}\n{}", hash(request.as_bytes()));
    let mut key = mac(format!("AWS4{}", keys.secret_key).as_bytes(), day.as_bytes());
    for step in [region, "s3", "aws4_request"] {
        key = mac(key.as_ref(), step.as_bytes());
    }
    let signature = hex(mac(key.as_ref(), text.as_bytes()).as_ref());
    let line = format!(
        "AWS4-HMAC-SHA256 Credential={}/{scope}, SignedHeaders={names}, Signature={signature}",
        keys.access_key
    );
    if let Ok(mut value) = HeaderValue::from_str(&line) {
        value.set_sensitive(true);
        parts.headers.insert(AUTHORIZATION, value);
    }
}

fn insert(parts: &mut http::request::Parts, name: &'static str, value: &str) {
    if let Ok(value) = HeaderValue::from_str(value) {
        parts.headers.insert(name, value);
    }
}

fn canonical_headers(parts: &http::request::Parts) -> (String, String) {
    let mut headers: Vec<(&str, String)> = parts
        .headers
        .iter()
        .map(|(name, value)| (name.as_str(), String::from_utf8_lossy(value.as_bytes()).trim().to_owned()))
        .collect();
    headers.sort();
    let names = headers.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(";");
    let lines = headers.iter().fold(String::new(), |mut lines, (name, value)| {
        let _ = writeln!(lines, "{name}:{value}");
        lines
    });
    (names, lines)
}

fn mac(key: &[u8], text: &[u8]) -> hmac::Tag {
    hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key), text)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use super::*;

    /// The example "GET Object" of the Amazon S3 reference.
    #[test]
    fn the_published_example_has_the_published_signature() {
        let request = http::Request::get("https://examplebucket.s3.amazonaws.com/test.txt")
            .header("host", "examplebucket.s3.amazonaws.com")
            .header("range", "bytes=0-9")
            .body(())
            .unwrap();
        let (mut parts, ()) = request.into_parts();
        let keys = Credentials {
            access_key: "AKIAIOSFODNN7EXAMPLE".to_owned(),
            secret_key: "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY".to_owned(),
            session_token: None,
        };
        let day = UNIX_EPOCH + Duration::from_secs(1_369_353_600);
        sign(&mut parts, &keys, "us-east-1", &hash(b""), day);
        let line = parts.headers[AUTHORIZATION].to_str().unwrap();
        assert!(line.ends_with("f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41"), "{line}");
    }

    #[test]
    fn keys_are_never_printed() {
        let keys = Credentials { access_key: "visible".into(), secret_key: "hidden".into(), session_token: None };
        assert_eq!(format!("{keys:?}"), "Credentials { .. }");
    }
}
