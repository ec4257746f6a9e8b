//! Host names of sandboxes' ports, for crates that put them into responses.

use http::request::Parts;
use isopod_wire::SandboxId;

use super::route::{Domains, by_host_name};

/// Builds and parses the host names by which browsers reach the ports of sandboxes.
#[derive(Clone, Debug)]
pub struct PreviewNames(Domains);

impl PreviewNames {
    pub(crate) fn new(domains: Domains) -> Self {
        Self(domains)
    }

    /// The host name of a port, with the server's port if it needs one, for the response to this request.
    pub fn host(&self, request: &Parts, sandbox: &SandboxId, port: u16) -> String {
        format!("{port}-{sandbox}.{}", self.0.advertised_to(request))
    }

    /// The sandbox and the port that a host name is for. `None` if it is not below one of the server's domains.
    pub fn parse(&self, host: &str) -> Option<(SandboxId, u16)> {
        let address = by_host_name(host, &self.0)?.ok()?;
        Some((address.sandbox, address.port))
    }
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    #[test]
    fn a_host_that_was_handed_out_is_parsed_and_other_hosts_are_not() {
        let names = PreviewNames::new(Domains::new("box.example:8443", &["e2b.app".to_owned()]));
        let sandbox: SandboxId = "iabc".parse().unwrap();
        for host in ["box.example:8443", "api.e2b.app"] {
            let request = Request::get("/").header("host", host).body(()).unwrap().into_parts().0;
            assert_eq!(names.parse(&names.host(&request, &sandbox, 3000)), Some((sandbox.clone(), 3000)), "{host}");
        }
        for other in ["3000-iabc.evil.example", "box.example:8443", "x-iabc.box.example", "0-iabc.box.example", ""] {
            assert_eq!(names.parse(other), None, "{other}");
        }
    }
}
