//! The sentence that the next page shows after a change, such as "Paused." It travels in an encrypted cookie.

use http::HeaderValue;
use http::request::Parts;

use crate::cookies::CookieName;
use crate::seal::SealKey;

const PURPOSE: &str = "isopod dashboard flash 1";
const SECONDS: u64 = 60;
/// Longer ones are cut, so that the cookie is small enough.
const MAX_LENGTH: usize = 500;

pub(crate) fn read(parts: &Parts, key: &SealKey) -> Option<String> {
    key.open(PURPOSE, &name(parts).read(&parts.headers)?)
}

pub(crate) fn name(parts: &Parts) -> CookieName {
    CookieName::of("flash", parts)
}

pub(crate) fn set(name: &CookieName, key: &SealKey, text: &str) -> Option<HeaderValue> {
    let cut: String = text.chars().take(MAX_LENGTH).collect();
    name.set(&key.seal(PURPOSE, &cut), SECONDS)
}
