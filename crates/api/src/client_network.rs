//! Whose requests count together if an address has a limit.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use http::request::Parts;

use crate::peer::Peer;

/// An IPv4 address, or 64 bits of an IPv6 address: an IPv6 customer has at least 2^64 addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ClientNetwork {
    V4(Ipv4Addr),
    V6([u16; 4]),
}

impl ClientNetwork {
    pub fn of(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V4(address) => Self::V4(address),
            IpAddr::V6(address) => {
                let [a, b, c, d, ..] = address.segments();
                Self::V6([a, b, c, d])
            }
        }
    }
}

impl fmt::Display for ClientNetwork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::V4(address) => address.fmt(f),
            Self::V6([a, b, c, d]) => write!(f, "{}/64", Ipv6Addr::new(*a, *b, *c, *d, 0, 0, 0, 0)),
        }
    }
}

/// The other end of the connection that a request came by. Behind a reverse proxy it is the proxy.
pub fn address_of(request: &Parts) -> IpAddr {
    request.extensions.get::<Peer>().map_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED), |peer| peer.address)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_one_text_in_all_its_forms() {
        let shown = |address: &str| ClientNetwork::of(address.parse().unwrap()).to_string();
        assert_eq!(shown("192.0.2.1"), "192.0.2.1");
        assert_eq!(shown("::ffff:192.0.2.1"), "192.0.2.1");
        assert_eq!(shown("2001:db8:0:1::1"), "2001:db8:0:1::/64");
        assert_eq!(shown("2001:db8:0:1:ffff::2"), "2001:db8:0:1::/64");
        assert_eq!(shown("::1"), "::/64");
    }
}
