//! The origin of a request. The listener adds it to every request.

use http::request::Parts;

/// The other end of a connection.
#[derive(Clone, Copy, Debug)]
pub struct Peer {
    pub address: std::net::IpAddr,
    /// Whether the connection is encrypted.
    pub tls: bool,
    /// Whether another server of the cluster has forwarded the request, and told the rest.
    pub is_forwarded: bool,
}

/// The scheme by which the client reached the server. Behind a proxy that terminates TLS, it is the one that the proxy
/// reports. Use it only for links in the response: a false report affects only the client that made it.
pub fn scheme_of(parts: &Parts) -> &'static str {
    let is_tls = parts.extensions.get::<Peer>().is_some_and(|peer| peer.tls);
    let forwarded = parts.headers.get("x-forwarded-proto").is_some_and(|scheme| scheme == "https");
    if is_tls || forwarded { "https" } else { "http" }
}
