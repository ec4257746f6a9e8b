//! Signed URLs: a hash over path, operation, user and the sandbox's token. Anyone with the URL can read or write that one
//! file until the signature expires.

use std::time::{SystemTime, UNIX_EPOCH};

use base64::Engine;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use sha2::{Digest, Sha256};

use crate::http::same_secret;

/// What a signature allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    Read,
    Write,
}

/// What a signature covers, exactly as in the URL.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Signed<'a> {
    pub(crate) path: &'a str,
    pub(crate) operation: Operation,
    pub(crate) user: &'a str,
    /// Seconds since 1970.
    pub(crate) expiration: Option<&'a str>,
}

/// Why a signature is not accepted.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SignatureError {
    #[error("missing signature query parameter")]
    Missing,
    #[error("invalid signature")]
    Invalid,
    #[error("signature is already expired")]
    Expired,
}

impl Signed<'_> {
    pub(crate) fn check(&self, token: &str, signature: Option<&str>) -> Result<(), SignatureError> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        self.check_at(token, signature, now)
    }

    fn check_at(&self, token: &str, signature: Option<&str>, now: u64) -> Result<(), SignatureError> {
        let signature = signature.ok_or(SignatureError::Missing)?;
        let expiration = self.expiration.map(|text| text.parse::<i64>().map_err(|_| SignatureError::Invalid));
        let expiration = expiration.transpose()?;
        if !same_secret(self.sign(token, expiration).as_bytes(), signature.as_bytes()) {
            return Err(SignatureError::Invalid);
        }
        match expiration {
            Some(expiration) if expiration < i64::try_from(now).unwrap_or(i64::MAX) => Err(SignatureError::Expired),
            _ => Ok(()),
        }
    }

    fn sign(&self, token: &str, expiration: Option<i64>) -> String {
        let operation = match self.operation {
            Operation::Read => "read",
            Operation::Write => "write",
        };
        let mut text = format!("{}:{operation}:{}:{token}", self.path, self.user);
        if let Some(expiration) = expiration {
            text.push_str(&format!(":{expiration}"));
        }
        format!("v1_{}", STANDARD_NO_PAD.encode(Sha256::digest(text.as_bytes())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const READ: Signed<'_> = Signed { path: "/a b", operation: Operation::Read, user: "user", expiration: None };

    #[test]
    fn another_path_operation_user_or_token_is_refused() {
        let signature = READ.sign("token", None);
        let others = [
            Signed { path: "/a", ..READ },
            Signed { operation: Operation::Write, ..READ },
            Signed { user: "", ..READ },
            Signed { expiration: Some("99999999999"), ..READ },
        ];
        for other in others {
            assert_eq!(other.check("token", Some(&signature)), Err(SignatureError::Invalid), "{other:?}");
        }
        assert_eq!(READ.check("other", Some(&signature)), Err(SignatureError::Invalid));
        assert_eq!(READ.check("token", None), Err(SignatureError::Missing));
        assert_eq!(READ.check("token", Some(&signature)), Ok(()));
    }

    #[test]
    fn an_expired_signature_says_so() {
        let signed = Signed { expiration: Some("100"), ..READ };
        let signature = signed.sign("token", Some(100));
        assert_eq!(signed.check_at("token", Some(&signature), 101), Err(SignatureError::Expired));
        assert_eq!(signed.check_at("token", Some(&signature), 100), Ok(()));
    }

    #[test]
    fn the_hash_is_the_one_of_the_sdks() {
        // printf '/f:read:user:t' | openssl dgst -sha256 -binary | base64
        let signed = Signed { path: "/f", operation: Operation::Read, user: "user", expiration: None };
        assert_eq!(signed.sign("t", None), "v1_EDHstefYANmPO3CGZYKvlePAaWGx0GKkCX1IY0NupRo");
    }
}
