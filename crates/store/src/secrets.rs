//! Random and secret values: new ids, keys and tokens, and how they are compared.

use isopod_wire::node::Secret;
use isopod_wire::{SandboxId, SnapshotId};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

/// The SHA-256 of an API key, as it is in the store.
pub type KeyHash = [u8; 32];

pub fn new_sandbox_id() -> SandboxId {
    SandboxId::from_random(random())
}

pub fn new_snapshot_id() -> SnapshotId {
    SnapshotId::from_random(random())
}

/// A new API key in the format that every SDK version accepts.
pub fn new_api_key() -> Secret {
    Secret(format!("e2b_{}", hex::encode(random::<20>())))
}

/// A new token for a sandbox.
pub fn new_token() -> Secret {
    Secret(hex::encode(random::<32>()))
}

/// Whether the text has the form of a token from [`new_token`].
pub fn is_token(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// A new template id: twenty lowercase letters and digits, like E2B's.
pub fn new_template_id() -> String {
    const LETTERS: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz012345";
    random::<20>().iter().map(|byte| char::from(LETTERS[usize::from(byte & 31)])).collect()
}

/// A unique name.
pub fn new_name() -> String {
    hex::encode(random::<8>())
}

/// The id of a new short URL: seven hexadecimal digits. So few can be guessed, so whoever looks them up limits guesses.
pub fn new_short_id() -> String {
    let mut digits = hex::encode(random::<4>());
    digits.truncate(7);
    digits
}

/// A new UUID (version 4).
pub fn new_uuid() -> String {
    let mut bytes: [u8; 16] = random();
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    let text = hex::encode(bytes);
    format!("{}-{}-{}-{}-{}", &text[..8], &text[8..12], &text[12..16], &text[16..20], &text[20..])
}

/// The hash of a key, which is what the store keeps.
pub fn hash_key(key: &str) -> KeyHash {
    Sha256::digest(key.as_bytes()).into()
}

/// Compares two texts in constant time, so that the time does not reveal where they differ.
pub fn same(left: &[u8], right: &[u8]) -> bool {
    left.ct_eq(right).into()
}

fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).expect("the kernel's random number generator is ready after boot");
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_have_the_shape_that_old_sdks_check() {
        let Secret(key) = new_api_key();
        assert!(key.strip_prefix("e2b_").is_some_and(|rest| rest.len() == 40), "{key}");
    }

    #[test]
    fn uuids_say_that_they_are_random() {
        let uuid = new_uuid();
        assert_eq!(uuid.len(), 36);
        assert_eq!(&uuid[14..15], "4");
        assert!(same(uuid.as_bytes(), uuid.clone().as_bytes()) && !same(uuid.as_bytes(), b"other"));
    }
}
