//! Signed file URLs name no sandbox: the signature itself tells, because only one sandbox's token can have made it.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use http::Method;
use isopod_api::query;
use isopod_store::secrets::same;
use isopod_wire::SandboxId;
use sha2::{Digest as _, Sha256};

use crate::lifecycle::Fleet;

/// The signed parts of a file URL.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Signed {
    path: String,
    username: String,
    signature: String,
    expiration: Option<String>,
}

/// SHA-256 in base64 without its padding.
const DIGEST: usize = 43;
/// No path that a kernel takes is longer.
const MAX_PATH: usize = 4096;
const MAX_NAME: usize = 256;
/// Digits of a time in seconds.
const MAX_TIME: usize = 20;

impl Signed {
    /// `None` when the URL is not signed.
    pub(super) fn from_query(text: &str) -> Option<Self> {
        let mut signed = Self::default();
        for (key, value) in query::pairs(text) {
            match key.as_str() {
                "path" => signed.path = value,
                "username" => signed.username = value,
                // A plus sign that the client did not escape has been read as a space.
                "signature" => signed.signature = value.replace(' ', "+"),
                "signature_expiration" => signed.expiration = Some(value),
                _ => {}
            }
        }
        (!signed.signature.is_empty()).then_some(signed)
    }

    /// Whether any token could have made it. Anybody can send a URL, and a signature is compared with what each sandbox
    /// would have made, so what cannot be one is not compared at all.
    fn could_be_one(&self) -> bool {
        let digest = self.signature.strip_prefix("v1_").unwrap_or_default();
        let is_digest =
            digest.len() == DIGEST && digest.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+/".contains(&byte));
        let expires_well = self.expiration.as_ref().is_none_or(|time| time.len() <= MAX_TIME);
        is_digest && self.path.len() <= MAX_PATH && self.username.len() <= MAX_NAME && expires_well
    }

    /// The live sandbox whose token made this signature. Whether it has expired is for the guest to say.
    pub(super) fn find(&self, method: &Method, fleet: &Fleet) -> Option<SandboxId> {
        let operations: &[&str] = match *method {
            Method::GET | Method::HEAD => &["read"],
            // A browser asks for permission before it sends what was signed.
            Method::OPTIONS => &["read", "write"],
            _ => &["write"],
        };
        if !self.could_be_one() {
            return None;
        }
        let begun: Vec<Begun> = operations.iter().map(|operation| self.begin(operation)).collect();
        fleet.all().into_iter().find_map(|sandbox| {
            let view = sandbox.view();
            let token = view.row.access_token.as_ref()?;
            begun.iter().any(|begun| begun.is_made_with(&token.0)).then(|| sandbox.id().clone())
        })
    }

    /// What is the same for all tokens is hashed once.
    fn begin(&self, operation: &str) -> Begun<'_> {
        Begun { hash: Sha256::new_with_prefix(format!("{}:{operation}:{}:", self.path, self.username)), signed: self }
    }
}

/// A signature's hash as far as the token.
struct Begun<'s> {
    hash: Sha256,
    signed: &'s Signed,
}

impl Begun<'_> {
    fn is_made_with(&self, token: &str) -> bool {
        let mut hash = self.hash.clone();
        hash.update(token);
        if let Some(expiration) = &self.signed.expiration {
            hash.update(format!(":{expiration}"));
        }
        let expected = format!("v1_{}", STANDARD_NO_PAD.encode(hash.finalize()));
        same(expected.as_bytes(), self.signed.signature.as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Signed {
        fn is_made_with(&self, operation: &str, token: &str) -> bool {
            self.begin(operation).is_made_with(token)
        }
    }

    /// Made with `e2b.sandbox.signature.get_signature("/home/user/a b.txt", "read", "user", "token")`'s formula.
    fn url(operation: &str) -> String {
        let digest = Sha256::digest(format!("/home/user/a b.txt:{operation}:user:token:99"));
        let signature = STANDARD_NO_PAD.encode(digest).replace('+', "%2B");
        format!("path=/home/user/a+b.txt&username=user&signature=v1_{signature}&signature_expiration=99")
    }

    #[test]
    fn a_signature_fits_one_operation_path_user_and_time() {
        let signed = Signed::from_query(&url("read")).unwrap();
        assert!(signed.is_made_with("read", "token"));
        assert!(!signed.is_made_with("write", "token"));
        assert!(!signed.is_made_with("read", "other"));
        assert!(
            !Signed { path: "/etc/passwd".into(), ..Signed::from_query(&url("read")).unwrap() }
                .is_made_with("read", "token")
        );
        assert!(
            !Signed { expiration: None, ..Signed::from_query(&url("read")).unwrap() }.is_made_with("read", "token")
        );
        assert!(
            !Signed { username: "root".into(), ..Signed::from_query(&url("read")).unwrap() }
                .is_made_with("read", "token")
        );
    }

    #[test]
    fn what_no_token_could_have_made_is_not_compared() {
        let good = || Signed::from_query(&url("read")).unwrap();
        assert!(good().could_be_one());
        let signature = good().signature;
        for bad in ["v1_", "v2_x", "x", &signature[1..], &format!("{signature}A"), &signature.replace("v1_", "v1-")] {
            assert!(!Signed { signature: (*bad).to_owned(), ..good() }.could_be_one(), "{bad}");
        }
        assert!(!Signed { signature: format!("v1_{}", "é".repeat(43)), ..good() }.could_be_one());
        assert!(Signed { path: "x".repeat(4096), ..good() }.could_be_one());
        assert!(!Signed { path: "x".repeat(4097), ..good() }.could_be_one());
        assert!(!Signed { username: "x".repeat(257), ..good() }.could_be_one());
        assert!(!Signed { expiration: Some("9".repeat(21)), ..good() }.could_be_one());
    }

    #[test]
    fn a_url_without_signature_is_not_signed() {
        assert_eq!(Signed::from_query("path=/x"), None);
        assert_eq!(Signed::from_query("path=/x&signature="), None);
    }
}
