//! Join tokens: a secret, and the fingerprint of the cluster's authority, by which the machine that joins knows that it
//! talks to the cluster and to nobody else.

use std::fmt;
use std::str::FromStr;

use isopod_store::secrets::{KeyHash, hash_key, new_token};

const PREFIX: &str = "isopod-join";
const DIGITS: usize = 64;

/// A token as it is shown once, to the operator.
#[derive(Clone, PartialEq, Eq)]
pub struct JoinToken {
    secret: String,
    fingerprint: String,
}

/// A token, and the member to present it to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JoinTarget {
    pub token: JoinToken,
    /// `host:port`
    pub address: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    #[error("a join token looks like isopod-join.SECRET.FINGERPRINT; `isopod cluster token` prints one")]
    Token,
    #[error("give the token and a member's address as TOKEN@HOST:PORT")]
    Target,
}

impl JoinToken {
    /// A new token for the cluster whose authority has this fingerprint.
    pub fn new(fingerprint: String) -> Self {
        Self { secret: new_token().0, fingerprint }
    }

    /// What the database keeps of it.
    pub fn hash(&self) -> KeyHash {
        hash_key(&self.secret)
    }

    pub(crate) fn secret(&self) -> &str {
        &self.secret
    }

    pub(crate) fn fingerprint(&self) -> &str {
        &self.fingerprint
    }
}

impl fmt::Display for JoinToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}.{}.{}", self.secret, self.fingerprint)
    }
}

impl fmt::Debug for JoinToken {
    /// Does not print the secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JoinToken")
    }
}

impl FromStr for JoinToken {
    type Err = TokenError;

    fn from_str(text: &str) -> Result<Self, TokenError> {
        let mut parts = text.split('.');
        let (Some(PREFIX), Some(secret), Some(fingerprint), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(TokenError::Token);
        };
        let is_hex = |part: &str| {
            part.len() == DIGITS && part.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
        };
        match is_hex(secret) && is_hex(fingerprint) {
            true => Ok(Self { secret: secret.to_owned(), fingerprint: fingerprint.to_owned() }),
            false => Err(TokenError::Token),
        }
    }
}

impl FromStr for JoinTarget {
    type Err = TokenError;

    fn from_str(text: &str) -> Result<Self, TokenError> {
        let (token, address) = text.trim().split_once('@').ok_or(TokenError::Target)?;
        let (host, port) = address.rsplit_once(':').ok_or(TokenError::Target)?;
        if host.is_empty() || !port.parse::<u16>().is_ok_and(|port| port > 0) {
            return Err(TokenError::Target);
        }
        Ok(Self { token: token.parse()?, address: address.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_read_as_it_was_printed_and_nothing_else_is() {
        let token = JoinToken::new("a".repeat(64));
        let target: JoinTarget = format!("{token}@[fd00::1]:7443\n").parse().unwrap();
        assert_eq!((target.token, target.address.as_str()), (token.clone(), "[fd00::1]:7443"));
        assert!(!format!("{token:?}").contains(token.secret()));
        for bad in ["", "isopod-join", "isopod-join.a.b", &token.to_string().to_uppercase(), &format!("{token}.x")] {
            assert_eq!(bad.parse::<JoinToken>(), Err(TokenError::Token), "{bad:?}");
        }
        for bad in [
            format!("{token}"),
            format!("{token}@"),
            format!("{token}@host"),
            format!("{token}@:1"),
            format!("{token}@host:0"),
        ] {
            assert_eq!(bad.parse::<JoinTarget>(), Err(TokenError::Target), "{bad:?}");
        }
    }
}
