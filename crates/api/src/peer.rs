//! Where a request comes from. The listener puts it into every request.

/// Who is at the other end of a connection.
#[derive(Clone, Copy, Debug)]
pub struct Peer {
    pub address: std::net::IpAddr,
    /// Whether the connection is encrypted.
    pub tls: bool,
}
