//! Signed file URLs name no sandbox. The signature identifies it, because only one sandbox's token can have made it.

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

/// The length of a SHA-256 digest in base64 without padding.
const DIGEST: usize = 43;
/// The kernel accepts no longer path.
const MAX_PATH: usize = 4096;
const MAX_NAME: usize = 256;
/// The number of digits of a time in seconds.
const MAX_TIME: usize = 20;

impl Signed {
    /// Returns `None` if the URL is not signed.
    pub(super) fn from_query(text: &str) -> Option<Self> {
        let mut signed = Self::default();
        for (key, value) in query::pairs(text) {
            match key.as_str() {
                "path" => signed.path = value,
                "username" => signed.username = value,
                // An unescaped plus sign was parsed as a space.
                "signature" => signed.signature = value.replace(' ', "+"),
                "signature_expiration" => signed.expiration = Some(value),
                _ => {}
            }
        }
        (!signed.signature.is_empty()).then_some(signed)
    }

    /// Whether any token could have made this signature. Anybody can send a URL, and each signature is compared with
    /// those of all sandboxes. Therefore values that cannot be signatures are not compared at all.
    fn is_well_formed(&self) -> bool {
        let digest = self.signature.strip_prefix("v1_").unwrap_or_default();
        let is_digest =
            digest.len() == DIGEST && digest.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+/".contains(&byte));
        let has_valid_expiration = self.expiration.as_ref().is_none_or(|time| time.len() <= MAX_TIME);
        is_digest && self.path.len() <= MAX_PATH && self.username.len() <= MAX_NAME && has_valid_expiration
    }

    /// Returns the live sandbox whose token made this signature. The guest checks whether it has expired.
    pub(super) fn find(&self, method: &Method, fleet: &Fleet) -> Option<SandboxId> {
        let operations: &[&str] = match *method {
            Method::GET | Method::HEAD => &["read"],
            // A browser sends a preflight request before the signed one.
            Method::OPTIONS => &["read", "write"],
            _ => &["write"],
        };
        if !self.is_well_formed() {
            return None;
        }
        let partial: Vec<PartialHash> = operations.iter().map(|operation| self.begin(operation)).collect();
        fleet.all().into_iter().find_map(|sandbox| {
            let view = sandbox.view();
            let token = view.row.access_token.as_ref()?;
            partial.iter().any(|partial| partial.matches(&token.0)).then(|| sandbox.id().clone())
        })
    }

    /// Hashes the part that is the same for all tokens, once.
    fn begin(&self, operation: &str) -> PartialHash<'_> {
        PartialHash {
            hash: Sha256::new_with_prefix(format!("{}:{operation}:{}:", self.path, self.username)),
            signed: self,
        }
    }
}

/// A signature's hash up to the token.
struct PartialHash<'s> {
    hash: Sha256,
    signed: &'s Signed,
}

impl PartialHash<'_> {
    fn matches(&self, token: &str) -> bool {
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
        fn matches(&self, operation: &str, token: &str) -> bool {
            self.begin(operation).matches(token)
        }
    }

    /// Computed with the formula of `e2b.sandbox.signature.get_signature("/home/user/a b.txt", "read", "user",
    /// "token")`.
    fn url(operation: &str) -> String {
        let digest = Sha256::digest(format!("/home/user/a b.txt:{operation}:user:token:99"));
        let signature = STANDARD_NO_PAD.encode(digest).replace('+', "%2B");
        format!("path=/home/user/a+b.txt&username=user&signature=v1_{signature}&signature_expiration=99")
    }

    #[test]
    fn a_signature_fits_one_operation_path_user_and_time() {
        let signed = Signed::from_query(&url("read")).unwrap();
        assert!(signed.matches("read", "token"));
        assert!(!signed.matches("write", "token"));
        assert!(!signed.matches("read", "other"));
        assert!(
            !Signed { path: "/etc/passwd".into(), ..Signed::from_query(&url("read")).unwrap() }
                .matches("read", "token")
        );
        assert!(!Signed { expiration: None, ..Signed::from_query(&url("read")).unwrap() }.matches("read", "token"));
        assert!(
            !Signed { username: "root".into(), ..Signed::from_query(&url("read")).unwrap() }.matches("read", "token")
        );
    }

    #[test]
    fn what_no_token_could_have_made_is_not_compared() {
        let good = || Signed::from_query(&url("read")).unwrap();
        assert!(good().is_well_formed());
        let signature = good().signature;
        for bad in ["v1_", "v2_x", "x", &signature[1..], &format!("{signature}A"), &signature.replace("v1_", "v1-")] {
            assert!(!Signed { signature: (*bad).to_owned(), ..good() }.is_well_formed(), "{bad}");
        }
        assert!(!Signed { signature: format!("v1_{}", "é".repeat(43)), ..good() }.is_well_formed());
        assert!(Signed { path: "x".repeat(4096), ..good() }.is_well_formed());
        assert!(!Signed { path: "x".repeat(4097), ..good() }.is_well_formed());
        assert!(!Signed { username: "x".repeat(257), ..good() }.is_well_formed());
        assert!(!Signed { expiration: Some("9".repeat(21)), ..good() }.is_well_formed());
    }

    #[test]
    fn a_url_without_signature_is_not_signed() {
        assert_eq!(Signed::from_query("path=/x"), None);
        assert_eq!(Signed::from_query("path=/x&signature="), None);
    }
}
