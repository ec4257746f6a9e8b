//! How programs of the server's machine find it under other domains than its own.

use std::net::Ipv4Addr;

use http::Method;
use serde::Deserialize;

use super::call::Call;
use super::{ApiError, Client};

/// What an Isopod server tells about the domains that it answers for.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct LocalNames {
    /// Its own, `host[:port]`.
    pub domain: String,
    /// Others, for programs of its machine.
    pub names: Option<ServedNames>,
    /// Why there are none.
    pub problem: Option<String>,
}

/// Domains that the server answers for.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct ServedNames {
    /// The domains.
    pub domains: Vec<String>,
    /// Where a resolver knows them, on port 53, and the server is, on port 443.
    pub address: Ipv4Addr,
    /// The authority that certifies them, in PEM.
    pub authority: String,
}

impl Client {
    /// Which domains the server answers for. Only Isopod's servers know this call.
    ///
    /// # Errors
    /// [`ApiError::NotFound`] from a server that does not know it.
    pub async fn local_names(&self) -> Result<LocalNames, ApiError> {
        self.call(Call::new(Method::GET, "/isopod/env")).await?.parse()
    }
}
