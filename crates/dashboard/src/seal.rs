//! Encrypts what browsers keep for us, so that they can neither read nor change it.

use std::fmt;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::rand::{SecureRandom as _, SystemRandom};

/// The key for cookies.
#[derive(Clone)]
pub struct SealKey(Arc<LessSafeKey>);

impl SealKey {
    /// Uses this secret.
    pub fn of(secret: &[u8; 32]) -> Self {
        let key = UnboundKey::new(&CHACHA20_POLY1305, secret).expect("a key of this algorithm has 32 bytes");
        Self(Arc::new(LessSafeKey::new(key)))
    }

    /// A key that no other server has.
    pub fn random() -> Self {
        Self::of(&random())
    }

    /// Encrypts a text. `purpose` must be the same when it is opened.
    pub(crate) fn seal(&self, purpose: &str, text: &str) -> String {
        // With random nonces of 96 bits, a key is good for billions of cookies.
        let nonce: [u8; NONCE_LEN] = random();
        let mut sealed = text.as_bytes().to_vec();
        let tag = self
            .0
            .seal_in_place_separate_tag(Nonce::assume_unique_for_key(nonce), Aad::from(purpose), &mut sealed)
            .expect("a cookie is shorter than the limit of the algorithm");
        URL_SAFE_NO_PAD.encode([&nonce, &*sealed, tag.as_ref()].concat())
    }

    /// Decrypts what [`Self::seal`] returned. `None` if it was made otherwise.
    pub(crate) fn open(&self, purpose: &str, sealed: &str) -> Option<String> {
        let mut bytes = URL_SAFE_NO_PAD.decode(sealed).ok()?;
        let (nonce, sealed) = bytes.split_first_chunk_mut::<NONCE_LEN>()?;
        let nonce = Nonce::assume_unique_for_key(*nonce);
        let text = self.0.open_in_place(nonce, Aad::from(purpose), sealed).ok()?;
        String::from_utf8(text.to_vec()).ok()
    }
}

impl fmt::Debug for SealKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SealKey").finish_non_exhaustive()
    }
}

/// Random bytes.
pub(crate) fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    SystemRandom::new().fill(&mut bytes).expect("the system has random numbers");
    bytes
}

/// A random text that nobody can guess.
pub(crate) fn random_text() -> String {
    URL_SAFE_NO_PAD.encode(random::<18>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_same_key_and_purpose_open_it() {
        let (key, other) = (SealKey::of(&[1; 32]), SealKey::of(&[2; 32]));
        let sealed = key.seal("session", "secret");
        assert_eq!(key.open("session", &sealed).as_deref(), Some("secret"));
        assert_eq!(key.open("flash", &sealed), None);
        assert_eq!(other.open("session", &sealed), None);
        assert!(!sealed.contains("secret") && sealed != key.seal("session", "secret"));
    }

    #[test]
    fn a_changed_text_is_not_opened() {
        let key = SealKey::random();
        let sealed = key.seal("session", "secret");
        for at in 0..sealed.len() {
            let mut changed = sealed.clone().into_bytes();
            changed[at] = if changed[at] == b'A' { b'B' } else { b'A' };
            assert_ne!(key.open("session", std::str::from_utf8(&changed).unwrap()).as_deref(), Some("secret"));
        }
        for wrong in ["", "A", "%", &sealed[..20]] {
            assert_eq!(key.open("session", wrong), None);
        }
    }
}
