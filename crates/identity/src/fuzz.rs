//! Fuzz targets for tokens and key sets.

use isopod_store::clock::Timestamp;

use crate::jwks::KeySet;
use crate::jwt::Token;

/// A token in the first line, and a key set after it. A token without our secret is never accepted.
pub fn jwt(data: &[u8]) {
    let line = data.iter().position(|byte| *byte == b'\n').unwrap_or(data.len());
    let keys = KeySet::parse(data.get(line + 1..).unwrap_or_default());
    let Ok(text) = std::str::from_utf8(&data[..line]) else { return };
    let Ok(token) = Token::parse(text) else { return };
    assert!(token.verify_secret(b"a secret that nobody outside knows").is_err(), "{text}");
    if let Some(keys) = keys {
        let _ = token.verify_public(&keys);
    }
    let Ok(claims) = token.into_claims() else { return };
    let _ = claims.check_time(Timestamp(1_700_000_000_000));
    let _ = claims.check_for(Some("issuer"), Some("audience"));
    let _ = claims.names_team("team");
}
