//! Team tokens: people instead of keys. A request carries a team's id and a signed token that says who asks, in the
//! headers of `wire::compat`.
//!
//! The token is a JWT of an identity service that the operator names, by its secret or by its public keys. What it says
//! is believed only after its signature, its time and the person's membership in the team were checked. Nothing that a
//! request's body says about who asks counts.

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

/// Whose tokens count.
#[derive(Clone, Debug)]
pub struct TeamTokens {
    /// What they are signed with.
    pub key: TokenKey,
    /// They must be made by this issuer (`iss`).
    pub issuer: Option<String>,
    /// They must be meant for this audience (`aud`).
    pub audience: Option<String>,
}

/// What tokens are signed with.
#[derive(Clone, Debug)]
pub enum TokenKey {
    /// A secret that the identity service shares with us: HS256.
    Secret(Secret),
    /// A file with the public keys of the identity service (a JWK set): RS256, ES256 and EdDSA (Ed25519). Read
    /// again when it changes.
    Jwks(PathBuf),
    /// A URL where the identity service has them.
    JwksUrl(String),
}

/// The time of its change, and what was in it.
type KeyFile = (SystemTime, Arc<KeySet>);

/// Checks tokens. Clones share the key file's contents.
#[derive(Clone, Debug)]
pub struct TokenCheck {
    tokens: TeamTokens,
    /// The key file as last read, with the time of its change. Written when the file has changed.
    known: Arc<Mutex<Option<KeyFile>>>,
    /// Where the keys are at a URL.
    remote: Option<Arc<RemoteKeys>>,
}

impl TokenCheck {
    /// `authorities` are PEM certificates that count beside those which this machine trusts.
    pub fn new(tokens: TeamTokens, authorities: Vec<u8>) -> Self {
        let remote = match &tokens.key {
            TokenKey::JwksUrl(url) => {
                let remote = RemoteKeys::new(url.clone(), Trust::new(authorities), remote_keys::PACE);
                Some(Arc::new(remote))
            }
            TokenKey::Secret(_) | TokenKey::Jwks(_) => None,
        };
        Self { tokens, known: Arc::default(), remote }
    }

    /// What the token says, if it may be believed now.
    pub async fn check(&self, text: &str, now: Timestamp) -> Result<Claims, TokenError> {
        let token = Token::parse(text)?;
        match (&self.tokens.key, &self.remote) {
            (TokenKey::Secret(secret), _) => token.verify_secret(secret.0.as_bytes())?,
            (TokenKey::Jwks(path), _) => token.verify_public(&*self.key_set(path)?)?,
            (TokenKey::JwksUrl(_), Some(remote)) => {
                // Looked at first: who sends something else makes nobody fetch anything.
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
