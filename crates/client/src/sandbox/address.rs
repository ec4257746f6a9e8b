//! The addresses of a sandbox's ports, by the rules of the official SDKs.

use isopod_guest_client::transport::{BaseUrl, UrlError};
use isopod_wire::SandboxId;

/// Used if neither the server nor the configuration names a domain.
pub(super) const DEFAULT_DOMAIN: &str = "e2b.app";
/// Domains whose edge serves all sandboxes under one name and routes by headers.
const HEADER_ROUTED: [&str; 4] = ["e2b.app", "e2b.dev", "e2b.pro", "e2b-staging.dev"];

/// `{port}-{id}.{domain}`
pub(super) fn host(domain: &str, sandbox: &SandboxId, port: u16) -> String {
    format!("{port}-{sandbox}.{domain}")
}

/// Returns the edge for one port of a sandbox, if none was configured.
pub(super) fn edge_url(domain: &str, sandbox: &SandboxId, port: u16) -> Result<BaseUrl, UrlError> {
    match HEADER_ROUTED.contains(&domain) {
        true => format!("https://sandbox.{domain}").parse(),
        false => format!("https://{}", host(domain, sandbox, port)).parse(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_follow_the_sdks() {
        let id: SandboxId = "i1".parse().unwrap();
        assert_eq!(edge_url("e2b.app", &id, 49983).unwrap().to_string(), "https://sandbox.e2b.app");
        assert_eq!(edge_url("box.example:8443", &id, 80).unwrap().to_string(), "https://80-i1.box.example:8443");
        assert!(edge_url("not a domain", &id, 80).is_err());
    }
}
