//! The policy for outbound requests, and connections that obey it.

use std::io;
use std::net::{IpAddr, SocketAddr};

use tokio::net::TcpStream;
use tokio::sync::Semaphore;

use crate::Allowed;
use crate::address::is_internal;

/// Where requests may go. The default allows only public addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    is_open: bool,
    allowed: Vec<Allowed>,
}

/// Why a connection could not be made.
#[derive(Debug, thiserror::Error)]
pub enum OutboundError {
    /// The name could not be resolved.
    #[error("could not resolve {host}")]
    Resolve {
        /// The host as the request names it.
        host: String,
        source: io::Error,
    },
    /// The host is this machine or in its network.
    #[error(
        "{host} is an internal address, which requests from users may not reach; the operator can allow it with --allow-outbound"
    )]
    Internal {
        /// The host as the request names it.
        host: String,
        /// The address that the host resolved to. It is not part of the message, because users must not learn about
        /// internal names.
        address: IpAddr,
    },
    /// The name has no address.
    #[error("{0} has no address")]
    NoAddress(String),
    /// The connection failed.
    #[error("could not connect to {host}")]
    Connect {
        /// The host as the request names it.
        host: String,
        source: io::Error,
    },
}

impl Policy {
    /// Allows public addresses and the given destinations.
    pub fn new(allowed: Vec<Allowed>) -> Self {
        Self { is_open: false, allowed }
    }

    /// Allows every address. Only for destinations that the operator configures.
    pub fn open() -> Self {
        Self { is_open: true, allowed: Vec::new() }
    }

    /// Also allows one more destination.
    #[must_use]
    pub fn and(mut self, place: Allowed) -> Self {
        self.allowed.push(place);
        self
    }

    /// Resolves the addresses of a host. If one of them is internal, the name is refused, because the next lookup may
    /// choose that address.
    ///
    /// # Errors
    /// If the host has no address, or has one that the policy forbids.
    pub async fn resolve(&self, host: &str, port: u16) -> Result<Vec<SocketAddr>, OutboundError> {
        let name = host.trim_matches(['[', ']']);
        let failed = |source| OutboundError::Resolve { host: host.to_owned(), source };
        let found = look_up(name, port).await.map_err(failed)?;
        if found.is_empty() {
            return Err(OutboundError::NoAddress(host.to_owned()));
        }
        match found.iter().map(SocketAddr::ip).find(|address| !self.permits(name, port, *address)) {
            Some(address) => Err(OutboundError::Internal { host: host.to_owned(), address }),
            None => Ok(found),
        }
    }

    /// Connects to a host, at one of the addresses that the policy checked.
    ///
    /// # Errors
    /// If the policy forbids it, or the connection fails.
    pub async fn connect(&self, host: &str, port: u16) -> Result<TcpStream, OutboundError> {
        let addresses = self.resolve(host, port).await?;
        let failed = |source| OutboundError::Connect { host: host.to_owned(), source };
        let stream = TcpStream::connect(addresses.as_slice()).await.map_err(failed)?;
        stream.set_nodelay(true).map_err(failed)?;
        Ok(stream)
    }

    fn permits(&self, host: &str, port: u16, address: IpAddr) -> bool {
        self.is_open
            || self.allowed.iter().any(|place| place.has_host(host, port) || place.has_address(address))
            || !is_internal(address)
    }
}

/// Limits the number of concurrent lookups. Each one blocks a thread for as long as the name's servers take, and all
/// tasks share a small pool of blocking threads.
static LOOKUPS: Semaphore = Semaphore::const_new(MAX_LOOKUPS);
const MAX_LOOKUPS: usize = 64;

async fn look_up(name: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    if let Ok(address) = name.parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(address, port)]);
    }
    let place = LOOKUPS.acquire().await.map_err(io::Error::other)?;
    let name = name.to_owned();
    // A task of its own holds the permit until the lookup ends, because the thread is busy even if the caller is
    // cancelled.
    let looking = tokio::spawn(async move {
        let _place = place;
        tokio::net::lookup_host((name, port)).await.map(Iterator::collect)
    });
    looking.await?
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn only_so_many_names_are_looked_up_at_a_time() {
        let taken = LOOKUPS.acquire_many(MAX_LOOKUPS.try_into().unwrap()).await.unwrap();
        let policy = Policy::open();
        let waiting = tokio::time::timeout(Duration::from_millis(100), policy.resolve("localhost", 80));
        assert!(waiting.await.is_err(), "a name waits for its turn");
        assert!(policy.resolve("127.0.0.1", 80).await.is_ok(), "an address needs none");
        drop(taken);
        assert!(policy.resolve("localhost", 80).await.is_ok());
    }

    #[tokio::test]
    async fn internal_addresses_are_refused_in_every_spelling_unless_they_are_allowed() {
        for host in ["127.0.0.1", "[::1]", "localhost", "2130706433", "0x7f.1", "10.0.0.1", "192.168.1.1"] {
            let refused = Policy::default().resolve(host, 80).await;
            assert!(matches!(refused, Err(OutboundError::Internal { .. })), "{host}: {refused:?}");
            assert!(Policy::open().resolve(host, 80).await.is_ok(), "{host}");
        }
        let allowed = Policy::new(vec!["10.0.0.0/8".parse().unwrap()]).and(Allowed::host("127.0.0.1", 5000));
        assert!(allowed.resolve("10.1.2.3", 80).await.is_ok());
        assert!(allowed.resolve("127.0.0.1", 5000).await.is_ok());
        assert!(allowed.resolve("127.0.0.1", 22).await.is_err());
        assert!(allowed.resolve("192.168.1.1", 80).await.is_err());
        assert!(allowed.resolve("1.1.1.1", 80).await.is_ok());
    }

    #[tokio::test]
    async fn a_listener_is_reached_only_where_the_policy_allows_it() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        assert!(Policy::default().connect("127.0.0.1", port).await.is_err());
        assert!(Policy::new(vec![Allowed::host("127.0.0.1", port)]).connect("127.0.0.1", port).await.is_ok());
    }
}
