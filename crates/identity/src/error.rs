//! Why a token, or a set of keys, does not count.

use std::path::PathBuf;

use isopod_outbound::RequestError;

/// Why a token does not count. The caller learns which of these, never more.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    #[error("the token is not a JWT")]
    Malformed,
    #[error("the token is signed by a method that does not count here")]
    Algorithm,
    #[error("the token's key is not known")]
    UnknownKey,
    #[error("the token's signature is wrong")]
    Signature,
    #[error("the token has expired or says no end")]
    Expired,
    #[error("the token does not count yet")]
    NotYet,
    #[error("the token was not made for this server")]
    Audience,
    #[error("the server's own keys for tokens cannot be read")]
    Keys(#[source] KeyError),
}

/// Why there are no public keys.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    #[error("could not read {path}")]
    Read { path: PathBuf, source: std::io::Error },
    #[error("could not fetch {url}")]
    Fetch { url: String, source: RequestError },
    #[error("{0} is not a JWK set")]
    Parse(String),
    #[error("no keys came from {0} so far")]
    None(String),
}
