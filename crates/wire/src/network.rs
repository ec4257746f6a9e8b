//! The network policy of a sandbox. Allow rules override deny rules. Addresses that are denied to every sandbox (the host, its
//! neighbours, the cloud's metadata service) are not part of the policy and cannot be allowed.

use std::fmt;
use std::net::Ipv4Addr;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// An IPv4 network such as `10.0.0.0/8`. An address without a prefix is a network of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Cidr {
    address: Ipv4Addr,
    prefix: u8,
}

/// Private networks. A policy can open only those that the operator of the host has configured.
pub const PRIVATE_NETWORKS: [Cidr; 4] = [
    Cidr::new(Ipv4Addr::new(10, 0, 0, 0), 8),
    Cidr::new(Ipv4Addr::new(100, 64, 0, 0), 10),
    Cidr::new(Ipv4Addr::new(172, 16, 0, 0), 12),
    Cidr::new(Ipv4Addr::new(192, 168, 0, 0), 16),
];

/// Which addresses a sandbox may reach.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetworkPolicy {
    /// Denies all outbound traffic except to `allow_out`.
    pub deny_internet: bool,
    /// Allowed networks; they override `deny_out` and `deny_internet`. Of [`PRIVATE_NETWORKS`], only those that the node is
    /// configured to open.
    pub allow_out: Vec<Cidr>,
    /// Denied networks.
    pub deny_out: Vec<Cidr>,
}

/// Why a text is not a network.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NetworkPolicyError {
    /// Not `a.b.c.d` or `a.b.c.d/n`.
    #[error("{0:?} is not an IPv4 address or CIDR such as 10.0.0.0/8")]
    NotACidr(String),
}

impl Cidr {
    /// All of IPv4.
    pub const ALL: Self = Self { address: Ipv4Addr::UNSPECIFIED, prefix: 0 };

    /// The network that contains `address`: bits after the prefix are cleared.
    ///
    /// # Panics
    /// If `prefix` is more than 32.
    pub const fn new(address: Ipv4Addr, prefix: u8) -> Self {
        assert!(prefix <= 32, "an IPv4 prefix has at most 32 bits");
        let mask = if prefix == 0 { 0 } else { u32::MAX << (32 - prefix) };
        Self { address: Ipv4Addr::from_bits(address.to_bits() & mask), prefix }
    }

    /// The first address.
    pub const fn first(self) -> Ipv4Addr {
        self.address
    }

    /// The last address.
    pub const fn last(self) -> Ipv4Addr {
        let host_bits = if self.prefix == 0 { u32::MAX } else { !(u32::MAX << (32 - self.prefix)) };
        Ipv4Addr::from_bits(self.address.to_bits() | if self.prefix == 32 { 0 } else { host_bits })
    }

    /// Whether it contains all of `other`.
    pub const fn contains(self, other: Self) -> bool {
        self.first().to_bits() <= other.first().to_bits() && other.last().to_bits() <= self.last().to_bits()
    }

    /// The length of the prefix in bits.
    pub const fn prefix(self) -> u8 {
        self.prefix
    }
}

impl FromStr for Cidr {
    type Err = NetworkPolicyError;

    /// Accepts only the dotted form: `0x7f.1` and `2130706433` mean different things to different programs.
    fn from_str(text: &str) -> Result<Self, NetworkPolicyError> {
        let bad = || NetworkPolicyError::NotACidr(text.to_owned());
        let (address, prefix) = text.split_once('/').unwrap_or((text, "32"));
        let address: Ipv4Addr = address.parse().map_err(|_| bad())?;
        let all_digits = !prefix.is_empty() && prefix.bytes().all(|b| b.is_ascii_digit());
        match prefix.parse() {
            Ok(prefix @ 0..=32) if all_digits => Ok(Self::new(address, prefix)),
            _ => Err(bad()),
        }
    }
}

impl TryFrom<String> for Cidr {
    type Error = NetworkPolicyError;

    fn try_from(text: String) -> Result<Self, NetworkPolicyError> {
        text.parse()
    }
}

impl From<Cidr> for String {
    fn from(cidr: Cidr) -> Self {
        cidr.to_string()
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn tricky_spellings_are_refused() {
        for bad in [
            "",
            "1.1.1",
            "0x7f.0.0.1",
            "2130706433",
            "1.1.1.1/33",
            "1.1.1.1/-1",
            "1.1.1.1/+8",
            "::1",
            "1.1.1.1/",
            "a.b",
        ] {
            assert!(bad.parse::<Cidr>().is_err(), "{bad:?} was accepted");
        }
    }

    #[test]
    fn bounds_of_a_network() {
        let ten: Cidr = "10.1.2.3/8".parse().unwrap();
        assert_eq!((ten.first(), ten.last()), (Ipv4Addr::new(10, 0, 0, 0), Ipv4Addr::new(10, 255, 255, 255)));
        assert_eq!((Cidr::ALL.first(), Cidr::ALL.last()), (Ipv4Addr::UNSPECIFIED, Ipv4Addr::BROADCAST));
        let one: Cidr = "1.2.3.4".parse().unwrap();
        assert_eq!((one.first(), one.last()), (one.last(), one.first()));
    }

    proptest! {
        #[test]
        fn what_is_printed_is_read_back(address: u32, prefix in 0u8..=32) {
            let cidr = Cidr::new(Ipv4Addr::from_bits(address), prefix);
            prop_assert_eq!(cidr.to_string().parse::<Cidr>().unwrap(), cidr);
            prop_assert!(cidr.first() <= cidr.last());
        }
    }
}
