//! The origin of a request. The listener adds it to every request.

/// The other end of a connection.
#[derive(Clone, Copy, Debug)]
pub struct Peer {
    pub address: std::net::IpAddr,
    /// Whether the connection is encrypted.
    pub tls: bool,
}
