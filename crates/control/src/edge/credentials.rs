//! What proves to this server who somebody is must not reach the code in a sandbox, which could use it itself.
//!
//! A service inside may ask for credentials of its own under the same names, so a value is dropped only if it would open
//! something here: an API key that counts, a team token that we would believe, a volume's token. Every occurrence is
//! looked at, with and without `Bearer`. What cannot be looked up now is dropped. `Authorization: Basic` and
//! `X-Access-Token` name a user to the guest and open nothing else, so the guest gets them.

use http::header::{AUTHORIZATION, HeaderMap, HeaderName, HeaderValue};
use isopod_store::clock::Timestamp;
use isopod_store::secrets::{hash_key, is_token, same};
use isopod_wire::compat::{TEAM_HEADER, TOKEN_HEADER};

use super::Edge;
use crate::lifecycle::View;
use isopod_identity::TokenError;

const API_KEY: HeaderName = HeaderName::from_static("x-api-key");
const ACCESS_TOKEN: HeaderName = HeaderName::from_static("x-access-token");
/// A request with more values of one of these names is looked at no further: the rest is dropped.
const MAX_VALUES: usize = 8;

/// Drops what opens something of this server.
pub(super) async fn strip_credentials(edge: &Edge, headers: &mut HeaderMap) {
    if edge.tokens.is_some() {
        headers.remove(TEAM_HEADER);
        headers.remove(TOKEN_HEADER);
    }
    // Also without team tokens: a client that sends everything it has to everybody sends a key under this name as well.
    for name in [API_KEY, AUTHORIZATION, HeaderName::from_static(TOKEN_HEADER)] {
        let values: Vec<HeaderValue> = headers.get_all(&name).iter().cloned().collect();
        headers.remove(&name);
        for value in values.into_iter().take(MAX_VALUES) {
            if !is_ours(edge, &value).await {
                headers.append(&name, value);
            }
        }
    }
}

/// Drops the sandbox's own access token on the way to a port that is not the guest's: who has it acts as any user inside.
pub(super) fn strip_access_token(view: &View, headers: &mut HeaderMap) {
    let Some(token) = &view.row.access_token else { return };
    let is_token = |value: &HeaderValue| same(value.as_bytes(), token.0.as_bytes());
    if headers.get_all(ACCESS_TOKEN).iter().any(is_token) {
        headers.remove(ACCESS_TOKEN);
    }
}

async fn is_ours(edge: &Edge, value: &HeaderValue) -> bool {
    // Ours have only visible characters.
    let Ok(text) = value.to_str() else { return false };
    for candidate in candidates(text) {
        if opens_something(edge, candidate).await {
            return true;
        }
    }
    false
}

/// The value itself, and what stands behind its scheme.
fn candidates(text: &str) -> impl Iterator<Item = &str> {
    let text = text.trim();
    let (scheme, rest) = text.split_once([' ', '\t']).unwrap_or((text, ""));
    let is_basic = scheme.eq_ignore_ascii_case("basic");
    [text, rest.trim()].into_iter().filter(move |candidate| !is_basic && !candidate.is_empty())
}

async fn opens_something(edge: &Edge, secret: &str) -> bool {
    let store = &edge.fleet.store;
    if !matches!(store.find_key(&hash_key(secret)).await, Ok(None)) {
        return true;
    }
    if is_token(secret) && !matches!(store.has_volume_token(secret).await, Ok(false)) {
        return true;
    }
    is_team_token(edge, secret).await
}

/// Also one that does not count yet, or that cannot be checked now.
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
