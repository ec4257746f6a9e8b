//! Why a token or a set of keys is not valid.

use std::path::PathBuf;

use isopod_outbound::RequestError;

/// Why a token is not valid. The caller gets this message and nothing more.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    #[error("the token is not a JWT")]
    Malformed,
    #[error("the token's signature algorithm is not accepted here")]
    Algorithm,
    #[error("the token's key is unknown")]
    UnknownKey,
    #[error("the token's signature is invalid")]
    Signature,
    #[error("the token has expired or has no expiry")]
    Expired,
    #[error("the token is not valid yet")]
    NotYet,
    #[error("the token was not issued for this server")]
    Audience,
    #[error("the server cannot read its keys for tokens")]
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
    #[error("no keys were received from {0} yet")]
    None(String),
}
