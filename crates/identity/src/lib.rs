//! Team tokens authenticate users instead of keys. A request carries a team's id and a signed token that identifies the
//! user, in the headers of `wire::compat`.
//!
//! The token is a JWT of an identity service that the operator configures, with its secret or its public keys. Its
//! claims are trusted only after its signature, its time and the user's membership in the team were checked. Nothing in
//! a request's body affects who the caller is.

mod claims;
mod error;
#[cfg(feature = "fuzzing")]
pub mod fuzz;
mod jwks;
mod jwt;
mod remote_keys;

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use isopod_wire::node::Secret;

pub use claims::Claims;
pub use error::{KeyError, TokenError};
use isopod_outbound::Trust;
use isopod_store::clock::Timestamp;

use jwks::KeySet;
use jwt::Token;
use remote_keys::RemoteKeys;

/// The tokens to accept.
#[derive(Clone, Debug)]
pub struct TeamTokens {
    /// The key that they are signed with.
    pub key: TokenKey,
    /// The required issuer (`iss`).
    pub issuer: Option<String>,
    /// The required audience (`aud`).
    pub audience: Option<String>,
}

/// The key that tokens are signed with.
#[derive(Clone, Debug)]
pub enum TokenKey {
    /// A secret shared with the identity service: HS256.
    Secret(Secret),
    /// A file with the public keys of the identity service (a JWK set): RS256, ES256 and EdDSA (Ed25519). Read again
    /// when it changes.
    Jwks(PathBuf),
    /// The URL of the public keys.
    JwksUrl(String),
}

/// The modification time and the content of a key file.
type KeyFile = (SystemTime, Arc<KeySet>);

/// Checks tokens. Clones share the cached keys.
#[derive(Clone, Debug)]
pub struct TokenCheck {
    tokens: TeamTokens,
    /// The key file as last read. Written when the file has changed.
    known: Arc<Mutex<Option<KeyFile>>>,
    /// Set if the keys are at a URL.
    remote: Option<Arc<RemoteKeys>>,
}

impl TokenCheck {
    /// `authorities` are PEM certificates to trust in addition to those that this machine trusts.
    pub fn new(tokens: TeamTokens, authorities: Vec<u8>) -> Self {
        let remote = match &tokens.key {
            TokenKey::JwksUrl(url) => {
                let remote = RemoteKeys::new(url.clone(), Trust::new(authorities), remote_keys::MIN_INTERVAL);
                Some(Arc::new(remote))
            }
            TokenKey::Secret(_) | TokenKey::Jwks(_) => None,
        };
        Self { tokens, known: Arc::default(), remote }
    }

    /// The required issuer.
    pub fn issuer(&self) -> Option<&str> {
        self.tokens.issuer.as_deref()
    }

    /// Returns the claims of the token if it is valid now.
    pub async fn check(&self, text: &str, now: Timestamp) -> Result<Claims, TokenError> {
        let token = Token::parse(text)?;
        match (&self.tokens.key, &self.remote) {
            (TokenKey::Secret(secret), _) => token.verify_secret(secret.0.as_bytes())?,
            (TokenKey::Jwks(path), _) => token.verify_public(&*self.key_set(path)?)?,
            (TokenKey::JwksUrl(_), Some(remote)) => {
                // Checked first, so that other tokens do not cause a fetch.
                token.check_algorithm()?;
                let keys = remote.keys_for(token.kid()).await.map_err(TokenError::Keys)?;
                token.verify_public(&keys)?;
            }
            (TokenKey::JwksUrl(url), None) => return Err(TokenError::Keys(KeyError::None(url.clone()))),
        }
        let claims = token.into_claims()?;
        claims.check_time(now)?;
        claims.check_for(self.tokens.issuer.as_deref(), self.tokens.audience.as_deref())?;
        Ok(claims)
    }

    fn key_set(&self, path: &PathBuf) -> Result<Arc<KeySet>, TokenError> {
        let unreadable = |source| TokenError::Keys(KeyError::Read { path: path.clone(), source });
        let changed = std::fs::metadata(path).and_then(|found| found.modified()).map_err(unreadable)?;
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((at, keys)) = &*known
            && *at == changed
        {
            return Ok(Arc::clone(keys));
        }
        let text = std::fs::read(path).map_err(unreadable)?;
        let keys = KeySet::parse(&text).ok_or_else(|| TokenError::Keys(KeyError::Parse(path.display().to_string())))?;
        let keys = Arc::new(keys);
        *known = Some((changed, Arc::clone(&keys)));
        Ok(keys)
    }
}

#[cfg(test)]
mod tests;
