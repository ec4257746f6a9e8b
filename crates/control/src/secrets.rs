//! Everything random or secret: new ids, keys and tokens, and how they are compared.

use isopod_wire::{SandboxId, node::Secret};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

/// The SHA-256 of an API key, as it stands in the store.
pub(crate) type KeyHash = [u8; 32];

/// A new sandbox id.
pub(crate) fn new_sandbox_id() -> SandboxId {
    SandboxId::from_random(random())
}

/// A new API key in the shape that every SDK version accepts.
pub(crate) fn new_api_key() -> Secret {
    Secret(format!("e2b_{}", hex(&random::<20>())))
}

/// A new token for a sandbox.
pub(crate) fn new_token() -> Secret {
    Secret(hex(&random::<32>()))
}

/// A new template id: twenty small letters and digits, as E2B's look.
pub(crate) fn new_template_id() -> String {
    const LETTERS: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz012345";
    random::<20>().iter().map(|byte| char::from(LETTERS[usize::from(byte & 31)])).collect()
}

/// A name that nothing else has.
pub(crate) fn new_name() -> String {
    hex(&random::<8>())
}

/// A new UUID (version 4).
pub(crate) fn new_uuid() -> String {
    let mut bytes: [u8; 16] = random();
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    let text = hex(&bytes);
    format!("{}-{}-{}-{}-{}", &text[..8], &text[8..12], &text[12..16], &text[16..20], &text[20..])
}

/// What the store keeps of a key.
pub(crate) fn hash_key(key: &str) -> KeyHash {
    Sha256::digest(key.as_bytes()).into()
}

/// Whether two texts are the same, in a time that does not tell where they differ.
pub(crate) fn same(left: &[u8], right: &[u8]) -> bool {
    left.ct_eq(right).into()
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    bytes.iter().flat_map(|b| [DIGITS[usize::from(b >> 4)], DIGITS[usize::from(b & 15)]]).map(char::from).collect()
}

fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).expect("the kernel gives random bytes once it is booted");
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
