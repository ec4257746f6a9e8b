//! AWS Signature Version 4, with the signature in a header. Used for buckets and for registries.

use std::fmt::{self, Write as _};
use std::time::SystemTime;

use http::HeaderValue;
use http::header::AUTHORIZATION;
use http::request::Parts;
use ring::{digest, hmac};
use time::OffsetDateTime;

/// Signs requests with the keys of an account, for a service in a region. `Debug` does not print the keys.
pub struct Signer<'a> {
    pub access_key: &'a str,
    pub secret_key: &'a str,
    pub session_token: Option<&'a str>,
    pub region: &'a str,
    pub service: &'a str,
}

impl fmt::Debug for Signer<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Signer").field("region", &self.region).field("service", &self.service).finish_non_exhaustive()
    }
}

impl Signer<'_> {
    /// Adds the signature to a request. All other headers must be complete, including `host`, and the path and query
    /// must already be encoded as the signature requires. If a key is not valid in a header, the request stays
    /// unsigned.
    pub fn sign(&self, parts: &mut Parts, body_hash: &str, now: SystemTime) {
        let stamp = stamp(now);
        let day = &stamp[..8];
        insert(parts, "x-amz-date", &stamp);
        insert(parts, "x-amz-content-sha256", body_hash);
        if let Some(token) = self.session_token {
            insert(parts, "x-amz-security-token", token);
        }
        let (names, headers) = canonical_headers(parts);
        let (path, query) = (parts.uri.path(), parts.uri.query().unwrap_or_default());
        let request = format!("{}\n{path}\n{query}\n{headers}\n{names}\n{body_hash}", parts.method);
        let scope = format!("{day}/{}/{}/aws4_request", self.region, self.service);
        let text = format!("AWS4-HMAC-SHA256\n{stamp}\n{scope}\n{}", sha256(request.as_bytes()));
        let first = mac(format!("AWS4{}", self.secret_key).as_bytes(), day);
        let key = [self.region, self.service, "aws4_request"].iter().fold(first, |key, step| mac(key.as_ref(), step));
        let signature = hex::encode(mac(key.as_ref(), &text));
        let id = self.access_key;
        let line = format!("AWS4-HMAC-SHA256 Credential={id}/{scope}, SignedHeaders={names}, Signature={signature}");
        if let Ok(mut value) = HeaderValue::from_str(&line) {
            value.set_sensitive(true);
            parts.headers.insert(AUTHORIZATION, value);
        }
    }
}

/// The hash of a body in the form that the signature uses.
pub fn sha256(body: &[u8]) -> String {
    hex::encode(digest::digest(&digest::SHA256, body))
}

fn stamp(now: SystemTime) -> String {
    let now = OffsetDateTime::from(now);
    let (year, month, date) = now.to_calendar_date();
    let (hour, minute, second) = now.to_hms();
    format!("{year:04}{:02}{date:02}T{hour:02}{minute:02}{second:02}Z", u8::from(month))
}

fn insert(parts: &mut Parts, name: &'static str, value: &str) {
    if let Ok(value) = HeaderValue::from_str(value) {
        parts.headers.insert(name, value);
    }
}

fn canonical_headers(parts: &Parts) -> (String, String) {
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

fn mac(key: &[u8], text: &str) -> hmac::Tag {
    hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key), text.as_bytes())
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
        let signer = Signer {
            access_key: "AKIAIOSFODNN7EXAMPLE",
            secret_key: "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
            session_token: None,
            region: "us-east-1",
            service: "s3",
        };
        signer.sign(&mut parts, &sha256(b""), UNIX_EPOCH + Duration::from_secs(1_369_353_600));
        let line = parts.headers[AUTHORIZATION].to_str().unwrap();
        assert!(line.ends_with("f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41"), "{line}");
        assert!(!format!("{signer:?}{parts:?}").contains("wJalrXUtnFEMI"));
    }
}
