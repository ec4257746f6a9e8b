//! Destinations that the operator allows although they are internal.

use std::net::IpAddr;
use std::str::FromStr;

/// A network, or a host by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Allowed {
    /// Every address with this prefix.
    Network {
        /// The first address of the network.
        address: IpAddr,
        /// The length of the prefix.
        bits: u8,
    },
    /// The host that requests call by this name, whatever its address is.
    Host {
        /// The name as in a URL, without brackets.
        name: String,
        /// The only allowed port. `None` allows all ports.
        port: Option<u16>,
    },
}

/// The text is neither a network nor a host.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is neither a network such as 10.0.0.0/8 nor a host such as registry.lan or registry.lan:5000")]
pub struct AllowedError(String);

impl Allowed {
    /// Allows one port of a host.
    pub fn host(name: &str, port: u16) -> Self {
        Self::Host { name: without_brackets(name).to_owned(), port: Some(port) }
    }

    pub(crate) fn has_host(&self, host: &str, wanted: u16) -> bool {
        match self {
            Self::Host { name, port } => {
                without_brackets(host).eq_ignore_ascii_case(name) && port.is_none_or(|port| port == wanted)
            }
            Self::Network { .. } => false,
        }
    }

    pub(crate) fn has_address(&self, address: IpAddr) -> bool {
        match (self, address.to_canonical()) {
            (Self::Network { address: IpAddr::V4(network), bits }, IpAddr::V4(address)) => {
                let shift = u32::from(32 - bits.min(&32));
                network.to_bits().checked_shr(shift).unwrap_or(0) == address.to_bits().checked_shr(shift).unwrap_or(0)
            }
            (Self::Network { address: IpAddr::V6(network), bits }, IpAddr::V6(address)) => {
                let shift = u32::from(128 - bits.min(&128));
                network.to_bits().checked_shr(shift).unwrap_or(0) == address.to_bits().checked_shr(shift).unwrap_or(0)
            }
            _ => false,
        }
    }
}

impl FromStr for Allowed {
    type Err = AllowedError;

    fn from_str(text: &str) -> Result<Self, AllowedError> {
        let wrong = || AllowedError(text.to_owned());
        if let Some((address, bits)) = text.split_once('/') {
            let address: IpAddr = address.parse().map_err(|_| wrong())?;
            let most = if address.is_ipv4() { 32 } else { 128 };
            let bits = bits.parse().ok().filter(|bits| *bits <= most).ok_or_else(wrong)?;
            return Ok(Self::Network { address, bits });
        }
        if let Ok(address) = without_brackets(text).parse::<IpAddr>() {
            return Ok(Self::Network { address, bits: if address.is_ipv4() { 32 } else { 128 } });
        }
        let (name, port) = match text.rsplit_once(':') {
            Some((name, port)) => (name, Some(port.parse().map_err(|_| wrong())?)),
            None => (text, None),
        };
        let name = without_brackets(name);
        if name.is_empty() || name.contains(['*', '@', ' ']) {
            return Err(wrong());
        }
        Ok(Self::Host { name: name.to_owned(), port })
    }
}

fn without_brackets(host: &str) -> &str {
    host.trim_matches(['[', ']'])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allowed(text: &str) -> Allowed {
        text.parse().unwrap()
    }

    #[test]
    fn a_network_holds_its_addresses_and_no_others() {
        for (network, inside, outside) in [
            ("10.0.0.0/8", "10.255.1.2", "11.0.0.1"),
            ("192.168.7.0/24", "::ffff:192.168.7.9", "192.168.8.1"),
            ("127.0.0.1", "127.0.0.1", "127.0.0.2"),
            ("fd00::/8", "fd12::1", "fe80::1"),
            ("::1", "::1", "::2"),
        ] {
            assert!(allowed(network).has_address(inside.parse().unwrap()), "{network} {inside}");
            assert!(!allowed(network).has_address(outside.parse().unwrap()), "{network} {outside}");
        }
        assert!(allowed("0.0.0.0/0").has_address("1.2.3.4".parse().unwrap()));
    }

    #[test]
    fn a_host_is_allowed_by_name_and_port() {
        assert!(allowed("registry.lan").has_host("Registry.LAN", 1) && !allowed("registry.lan").has_host("x.lan", 1));
        assert!(allowed("registry.lan:5000").has_host("registry.lan", 5000));
        assert!(!allowed("registry.lan:5000").has_host("registry.lan", 22));
        assert!(allowed("[::1]:80").has_host("::1", 80) && !allowed("127.0.0.1:80").has_host("127.0.0.1", 81));
    }

    #[test]
    fn what_names_no_place_is_refused() {
        for bad in ["", "10.0.0.0/33", "x/8", "*.lan", "host:port", ":80", "a b"] {
            assert!(bad.parse::<Allowed>().is_err(), "{bad:?}");
        }
    }
}
