//! Credentials of requests: the sandbox's token, the host's header, and the name of a user.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::{HeaderValue, Request, StatusCode};
use hyper::body::Incoming;

use crate::http::HttpError;
use crate::settings::Settings;

/// Marks a request of the host, for example to `/init`, `/logs` or `/delivery`. The edge removes the header from requests of
/// clients.
const CONTROL_HEADER: &str = "x-isopod-control";
const TOKEN_HEADER: &str = "x-access-token";

pub(crate) fn authorize(settings: &Settings, request: &Request<Incoming>) -> Result<(), HttpError> {
    let Some(token) = &settings.access_token else { return Ok(()) };
    match request.headers().get(TOKEN_HEADER) {
        Some(given) if same_secret(given.as_bytes(), token.as_bytes()) => Ok(()),
        _ => Err(HttpError::new(
            StatusCode::UNAUTHORIZED,
            "unauthorized access, please provide a valid access token or method signing if supported",
        )),
    }
}

/// Refuses requests that do not come from the host, as if the path did not exist.
pub(crate) fn check_host(request: &Request<Incoming>) -> Result<(), HttpError> {
    match request.headers().get(CONTROL_HEADER) {
        Some(value) if value == "1" => Ok(()),
        _ => Err(HttpError::new(StatusCode::NOT_FOUND, format!("{} not found", request.uri().path()))),
    }
}

/// The token that a request carries, if any.
pub(crate) fn shown_token(request: &Request<Incoming>) -> Option<&[u8]> {
    request.headers().get(TOKEN_HEADER).map(HeaderValue::as_bytes).filter(|token| !token.is_empty())
}

/// Compares in constant time, so that the duration does not reveal where the difference is.
pub(crate) fn same_secret(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |difference, (a, b)| difference | (a ^ b)) == 0
}

/// The user name in `Authorization: Basic`, which the SDKs send without a password.
pub(crate) fn basic_user(header: Option<&HeaderValue>) -> Option<String> {
    let (scheme, encoded) = header?.to_str().ok()?.split_once(' ')?;
    if !scheme.eq_ignore_ascii_case("basic") {
        return None;
    }
    let decoded = String::from_utf8(STANDARD.decode(encoded.trim()).ok()?).ok()?;
    let name = decoded.split_once(':').map_or(decoded.as_str(), |(name, _)| name);
    (!name.is_empty()).then(|| name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_basic_authorization_names_a_user() {
        let user = |text: &str| basic_user(Some(&text.parse().unwrap()));
        assert_eq!(user("Bearer cm9vdDo="), None);
        assert_eq!(user("Basic %%%"), None);
        assert_eq!(user("Basic Og=="), None);
        assert_eq!(user("Basic"), None);
        assert_eq!(user("Basic cm9vdDo="), Some("root".into()));
        assert_eq!(user("basic cm9vdA=="), Some("root".into()));
    }

    #[test]
    fn secrets_compare_whole() {
        assert!(same_secret(b"abc", b"abc"));
        assert!(!same_secret(b"abc", b"abd") && !same_secret(b"abc", b"ab") && !same_secret(b"", b"a"));
    }
}
