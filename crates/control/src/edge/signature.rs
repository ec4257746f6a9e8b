//! Signed file URLs name no sandbox: the signature itself tells, because only one sandbox's token can have made it.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use http::Method;
use isopod_wire::SandboxId;
use sha2::{Digest as _, Sha256};

use crate::lifecycle::Fleet;
use crate::query;
use crate::secrets::same;

/// The signed parts of a file URL.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Signed {
    path: String,
    username: String,
    signature: String,
    expiration: Option<String>,
}

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

    /// The live sandbox whose token made this signature. Whether it has expired is for the guest to say.
    pub(super) fn find(&self, method: &Method, fleet: &Fleet) -> Option<SandboxId> {
        let operations: &[&str] = match *method {
            Method::GET | Method::HEAD => &["read"],
            // A browser asks for permission before it sends what was signed.
            Method::OPTIONS => &["read", "write"],
            _ => &["write"],
        };
        fleet.all().into_iter().find_map(|sandbox| {
            let view = sandbox.view();
            let token = view.row.access_token.as_ref()?;
            operations.iter().any(|operation| self.is_made_with(operation, &token.0)).then(|| sandbox.id().clone())
        })
    }

    fn is_made_with(&self, operation: &str, token: &str) -> bool {
        let mut hash = Sha256::new();
        hash.update(format!("{}:{operation}:{}:{token}", self.path, self.username));
        if let Some(expiration) = &self.expiration {
            hash.update(format!(":{expiration}"));
        }
        let expected = format!("v1_{}", STANDARD_NO_PAD.encode(hash.finalize()));
        same(expected.as_bytes(), self.signature.as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn a_url_without_signature_is_not_signed() {
        assert_eq!(Signed::from_query("path=/x"), None);
        assert_eq!(Signed::from_query("path=/x&signature="), None);
    }
}
