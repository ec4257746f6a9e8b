//! Removes credentials of this server from requests to sandboxes, because code inside could use them.
//!
//! A service inside a sandbox may expect credentials of its own under the same names. Only values that are valid here
//! are removed: API keys, team tokens and volume tokens. All occurrences are checked, with and without `Bearer`. A
//! value that cannot be looked up right now is removed. `Authorization: Basic` and `X-Access-Token` name a user to the
//! guest and grant nothing else, so the guest gets them.

use http::header::{AUTHORIZATION, HeaderMap, HeaderName, HeaderValue};
use isopod_store::clock::Timestamp;
use isopod_store::secrets::{hash_key, is_token, same};
use isopod_wire::compat::{TEAM_HEADER, TOKEN_HEADER};

use super::Edge;
use crate::lifecycle::View;
use isopod_identity::TokenError;

const API_KEY: HeaderName = HeaderName::from_static("x-api-key");
const ACCESS_TOKEN: HeaderName = HeaderName::from_static("x-access-token");
/// At most this many values of a header are checked. The rest are removed.
const MAX_VALUES: usize = 8;

/// Removes credentials of this server.
pub(super) async fn strip_credentials(edge: &Edge, headers: &mut HeaderMap) {
    if edge.tokens.is_some() {
        headers.remove(TEAM_HEADER);
        headers.remove(TOKEN_HEADER);
    }
    // Also without team tokens: some clients send a key under this name too.
    for name in [API_KEY, AUTHORIZATION, HeaderName::from_static(TOKEN_HEADER)] {
        let values: Vec<HeaderValue> = headers.get_all(&name).iter().cloned().collect();
        headers.remove(&name);
        for value in values.into_iter().take(MAX_VALUES) {
            if !is_own_credential(edge, &value).await {
                headers.append(&name, value);
            }
        }
    }
}

/// Removes the sandbox's own access token from requests to ports other than the guest's, because its bearer can act as
/// any user inside.
pub(super) fn strip_access_token(view: &View, headers: &mut HeaderMap) {
    let Some(token) = &view.row.access_token else { return };
    let is_token = |value: &HeaderValue| same(value.as_bytes(), token.0.as_bytes());
    if headers.get_all(ACCESS_TOKEN).iter().any(is_token) {
        headers.remove(ACCESS_TOKEN);
    }
}

async fn is_own_credential(edge: &Edge, value: &HeaderValue) -> bool {
    // Credentials of this server have only visible ASCII characters.
    let Ok(text) = value.to_str() else { return false };
    for candidate in candidates(text) {
        if is_valid_here(edge, candidate).await {
            return true;
        }
    }
    false
}

/// Returns the value itself, and the part after its scheme.
fn candidates(text: &str) -> impl Iterator<Item = &str> {
    let text = text.trim();
    let (scheme, rest) = text.split_once([' ', '\t']).unwrap_or((text, ""));
    let is_basic = scheme.eq_ignore_ascii_case("basic");
    [text, rest.trim()].into_iter().filter(move |candidate| !is_basic && !candidate.is_empty())
}

async fn is_valid_here(edge: &Edge, secret: &str) -> bool {
    let store = &edge.fleet.store;
    if !matches!(store.find_key(&hash_key(secret)).await, Ok(None)) {
        return true;
    }
    if is_token(secret) && !matches!(store.has_volume_token(secret).await, Ok(false)) {
        return true;
    }
    is_team_token(edge, secret).await
}

/// Also true for a token that is not valid yet, or that cannot be checked now.
async fn is_team_token(edge: &Edge, text: &str) -> bool {
    let Some(check) = &edge.tokens else { return false };
    matches!(check.check(text, Timestamp::now()).await, Ok(_) | Err(TokenError::NotYet | TokenError::Keys(_)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_seen_in_every_spelling_and_basic_is_left_to_the_guest() {
        let of = |text| candidates(text).collect::<Vec<_>>();
        assert_eq!(of("key"), ["key"]);
        for text in ["Bearer key", "bearer  key ", "BEARER\tkey", "Token key"] {
            assert_eq!(of(text).last(), Some(&"key"), "{text:?}");
        }
        assert!(of("Basic dXNlcjo=").is_empty() && of("").is_empty());
    }
}
