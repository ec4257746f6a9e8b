//! The public keys of an identity service, as a JWK set (RFC 7517).

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Deserialize;

/// The supported keys. Others in the set are for other purposes and are skipped.
#[derive(Debug)]
pub(super) struct KeySet {
    keys: Vec<(Option<String>, PublicKey)>,
}

/// One key.
#[derive(Debug)]
pub(super) enum PublicKey {
    Rsa {
        n: Vec<u8>,
        e: Vec<u8>,
    },
    /// An uncompressed point of P-256.
    P256(Vec<u8>),
    Ed25519(Vec<u8>),
}

#[derive(Deserialize)]
struct Set {
    keys: Vec<Jwk>,
}

#[derive(Deserialize)]
struct Jwk {
    kty: String,
    kid: Option<String>,
    crv: Option<String>,
    n: Option<String>,
    e: Option<String>,
    x: Option<String>,
    y: Option<String>,
}

impl KeySet {
    pub(super) fn parse(text: &[u8]) -> Option<Self> {
        let set: Set = serde_json::from_slice(text).ok()?;
        let keys = set.keys.into_iter().filter_map(|jwk| Some((jwk.kid.clone(), jwk.public_key()?)));
        Some(Self { keys: keys.collect() })
    }

    /// Returns the keys that may have signed a token: the one with this id, or all if the token names none.
    pub(super) fn candidates<'a>(&'a self, kid: Option<&'a str>) -> impl Iterator<Item = &'a PublicKey> {
        let matches = move |known: Option<&str>| kid.is_none() || known == kid;
        self.keys.iter().filter(move |(known, _)| matches(known.as_deref())).map(|(_, key)| key)
    }
}

impl Jwk {
    fn public_key(&self) -> Option<PublicKey> {
        let bytes = |text: &Option<String>| URL_SAFE_NO_PAD.decode(text.as_deref()?).ok();
        match (self.kty.as_str(), self.crv.as_deref()) {
            ("RSA", _) => Some(PublicKey::Rsa { n: bytes(&self.n)?, e: bytes(&self.e)? }),
            ("EC", Some("P-256")) => {
                let point = [vec![4], bytes(&self.x)?, bytes(&self.y)?].concat();
                (point.len() == 65).then_some(PublicKey::P256(point))
            }
            ("OKP", Some("Ed25519")) => {
                let point = bytes(&self.x)?;
                (point.len() == 32).then_some(PublicKey::Ed25519(point))
            }
            _ => None,
        }
    }
}
