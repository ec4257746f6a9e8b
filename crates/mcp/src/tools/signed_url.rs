//! URLs of files in sandboxes that need no key, signed as the official SDKs do it.

use std::time::{SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use isopod_client::Sandbox;
use isopod_wire::GUEST_PORT;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use sha2::{Digest as _, Sha256};

/// How long a URL is valid.
pub(super) const VALID_SECONDS: u64 = 3600;
const USER: &str = "user";

#[derive(Clone, Copy, Debug)]
pub(super) enum Operation {
    Read,
    Write,
}

/// The URL of a file. It names the path as the caller gave it.
pub(super) fn signed_url(sandbox: &Sandbox, scheme: &str, path: &str, operation: Operation) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs());
    let query = query(sandbox.access_token(), path, operation, now + VALID_SECONDS);
    format!("{scheme}://{}/files?{query}", sandbox.host(GUEST_PORT))
}

fn query(token: Option<&str>, path: &str, operation: Operation, expiration: u64) -> String {
    let encode = |text: &str| utf8_percent_encode(text, NON_ALPHANUMERIC).to_string();
    let mut query = format!("path={}&username={USER}", encode(path));
    // Files of a sandbox without a token are open to whoever knows its id.
    if let Some(token) = token {
        let operation = match operation {
            Operation::Read => "read",
            Operation::Write => "write",
        };
        let digest = Sha256::digest(format!("{path}:{operation}:{USER}:{token}:{expiration}"));
        let signature = format!("v1_{}", STANDARD_NO_PAD.encode(digest));
        query.push_str(&format!("&signature={}&signature_expiration={expiration}", encode(&signature)));
    }
    query
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_names_the_path_the_user_and_the_end() {
        let query = query(Some("token"), "/home/user/a b.txt", Operation::Read, 99);
        let digest = Sha256::digest("/home/user/a b.txt:read:user:token:99");
        let signature = STANDARD_NO_PAD.encode(digest).replace('+', "%2B").replace('/', "%2F");
        assert_eq!(
            query,
            format!(
                "path=%2Fhome%2Fuser%2Fa%20b%2Etxt&username=user&signature=v1%5F{signature}&signature_expiration=99"
            )
        );
    }
}
