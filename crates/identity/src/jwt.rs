//! Parses a JWT in its compact form (RFC 7519), and verifies its signature with `ring`, which TLS needs anyway. Four
//! algorithms are accepted, each only with its own kind of key: a token cannot choose how it is verified.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::{hmac, signature};
use serde::Deserialize;

use crate::claims::Claims;
use crate::error::TokenError;
use crate::jwks::{KeySet, PublicKey};

/// A token whose signature was not verified yet.
pub(super) struct Token<'a> {
    header: Header,
    /// The part that is signed.
    signed: &'a str,
    payload: Vec<u8>,
    signature: Vec<u8>,
}

#[derive(Deserialize)]
struct Header {
    alg: String,
    kid: Option<String>,
    /// Extensions that a reader must understand. None are supported.
    crit: Option<serde_json::Value>,
}

/// No identity service issues longer tokens.
const MAX_LENGTH: usize = 16 << 10;

impl<'a> Token<'a> {
    pub(super) fn parse(text: &'a str) -> Result<Self, TokenError> {
        let parse = || {
            let (signed, signature) = text.rsplit_once('.')?;
            let (header, payload) = signed.split_once('.')?;
            let decode = |part: &str| URL_SAFE_NO_PAD.decode(part).ok();
            let header: Header = serde_json::from_slice(&decode(header)?).ok()?;
            Some(Self { header, signed, payload: decode(payload)?, signature: decode(signature)? })
        };
        let token = if text.len() <= MAX_LENGTH { parse() } else { None };
        token.filter(|token| token.header.crit.is_none()).ok_or(TokenError::Malformed)
    }

    pub(super) fn verify_secret(&self, secret: &[u8]) -> Result<(), TokenError> {
        if self.header.alg != "HS256" {
            return Err(TokenError::Algorithm);
        }
        let key = hmac::Key::new(hmac::HMAC_SHA256, secret);
        hmac::verify(&key, self.signed.as_bytes(), &self.signature).map_err(|_| TokenError::Signature)
    }

    /// The id of the key that the token claims to be signed with.
    pub(super) fn kid(&self) -> Option<&str> {
        self.header.kid.as_deref()
    }

    /// Whether its algorithm uses public keys.
    pub(super) fn check_algorithm(&self) -> Result<(), TokenError> {
        let is_public = matches!(self.header.alg.as_str(), "RS256" | "ES256" | "EdDSA");
        if is_public { Ok(()) } else { Err(TokenError::Algorithm) }
    }

    pub(super) fn verify_public(&self, keys: &KeySet) -> Result<(), TokenError> {
        self.check_algorithm()?;
        let mut known = false;
        for key in keys.candidates(self.header.kid.as_deref()) {
            known = true;
            if self.is_signed_by(key) {
                return Ok(());
            }
        }
        Err(if known { TokenError::Signature } else { TokenError::UnknownKey })
    }

    fn is_signed_by(&self, key: &PublicKey) -> bool {
        let signed = self.signed.as_bytes();
        match (key, self.header.alg.as_str()) {
            (PublicKey::Rsa { n, e }, "RS256") => signature::RsaPublicKeyComponents { n, e }
                .verify(&signature::RSA_PKCS1_2048_8192_SHA256, signed, &self.signature)
                .is_ok(),
            (PublicKey::P256(point), "ES256") => {
                let key = signature::UnparsedPublicKey::new(&signature::ECDSA_P256_SHA256_FIXED, point);
                key.verify(signed, &self.signature).is_ok()
            }
            (PublicKey::Ed25519(point), "EdDSA") => {
                signature::UnparsedPublicKey::new(&signature::ED25519, point).verify(signed, &self.signature).is_ok()
            }
            _ => false,
        }
    }

    /// Must be called after the signature was verified.
    pub(super) fn into_claims(self) -> Result<Claims, TokenError> {
        serde_json::from_slice(&self.payload).map_err(|_| TokenError::Malformed)
    }
}
