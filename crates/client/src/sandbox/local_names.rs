//! How programs on the server's machine find it under other domains than its own.

use std::net::Ipv4Addr;

use http::Method;
use serde::Deserialize;

use super::call::Call;
use super::{ApiError, Client};

/// The domains that an Isopod server serves.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct LocalNames {
    /// Its own domain, `host[:port]`.
    pub domain: String,
    /// Other domains, for programs on its machine.
    pub names: Option<ServedNames>,
    /// Why there are none.
    pub problem: Option<String>,
}

/// Other domains of a server.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct ServedNames {
    /// The domains.
    pub domains: Vec<String>,
    /// The address of a resolver for them on port 53 and of the server on port 443.
    pub address: Ipv4Addr,
    /// The certificate of their authority, in PEM.
    pub authority: String,
}

impl Client {
    /// Returns the domains that the server serves. Only Isopod's servers support this call.
    ///
    /// # Errors
    /// [`ApiError::NotFound`] from a server that does not know it.
    pub async fn local_names(&self) -> Result<LocalNames, ApiError> {
        self.call(Call::new(Method::GET, "/isopod/env")).await?.parse()
    }
}
