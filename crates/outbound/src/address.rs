//! Which addresses are internal: private, special, or this machine's own.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};

/// Whether the address can be reached only from this machine or its network.
pub(crate) fn is_internal(address: IpAddr) -> bool {
    let is_special = match address {
        IpAddr::V4(address) => is_internal_v4(address),
        IpAddr::V6(address) => is_internal_v6(address),
    };
    is_special || is_own(address.to_canonical())
}

fn is_internal_v4(address: Ipv4Addr) -> bool {
    let [a, b, c, _] = address.octets();
    address.is_loopback()
        || address.is_private()
        || address.is_link_local()
        || address.is_multicast()
        || address.is_documentation()
        || a == 0
        || a >= 240
        || (a == 100 && (64..128).contains(&b))
        || (a == 192 && b == 0 && c == 0)
        || (a == 198 && (b & 0xfe) == 18)
        || address == AZURE_HOST
}

/// Where Azure machines get their settings and secrets. The address looks public, but only such a machine can reach it.
const AZURE_HOST: Ipv4Addr = Ipv4Addr::new(168, 63, 129, 16);

/// Also recognizes the forms in which an IPv6 address contains an IPv4 address.
fn is_internal_v6(address: Ipv6Addr) -> bool {
    let words = address.segments();
    let inner = |high: u16, low: u16| Ipv4Addr::from_bits(u32::from(high) << 16 | u32::from(low));
    let hidden = match words {
        [0, 0, 0, 0, 0, 0 | 0xffff, high, low] => Some(inner(high, low)),
        [0x64, 0xff9b, _, _, _, _, high, low] => Some(inner(high, low)),
        [0x2002, high, low, ..] => Some(inner(high, low)),
        _ => None,
    };
    hidden.is_some_and(|hidden| is_internal_v4(hidden) || is_own(hidden.into()))
        || address.is_loopback()
        || address.is_unspecified()
        || address.is_multicast()
        || (words[0] & 0xfe00) == 0xfc00
        || (words[0] & 0xffc0) == 0xfe80
        || (words[0] & 0xffc0) == 0xfec0
        || (words[0] == 0x2001 && words[1] == 0xdb8)
        // The operator of the network decides how these addresses are translated.
        || words[..3] == [0x64, 0xff9b, 1]
        // Teredo: the visible IPv4 address is that of a relay, and another one is hidden behind it.
        || words[..2] == [0x2001, 0]
}

/// Whether an interface of this machine has the address, even if it is public. Services that listen on all addresses
/// listen there too.
fn is_own(address: IpAddr) -> bool {
    if can_bind(address) && !can_bind_foreign() {
        return true;
    }
    // For an address of its own, the kernel chooses that address as the source. Connecting a UDP socket sends nothing.
    let any = if address.is_ipv4() { IpAddr::from(Ipv4Addr::UNSPECIFIED) } else { Ipv6Addr::UNSPECIFIED.into() };
    let source = UdpSocket::bind((any, 0)).and_then(|socket| {
        socket.connect((address, 9))?;
        socket.local_addr()
    });
    source.is_ok_and(|source| source.ip() == address)
}

fn can_bind(address: IpAddr) -> bool {
    UdpSocket::bind((address, 0)).is_ok()
}

/// With `ip_nonlocal_bind`, every address can be bound, so a successful bind proves nothing.
fn can_bind_foreign() -> bool {
    can_bind(Ipv4Addr::new(192, 0, 2, 1).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn internal_addresses_are_recognised_in_every_disguise() {
        for text in [
            "127.0.0.1",
            "10.1.2.3",
            "172.16.0.1",
            "192.168.1.1",
            "169.254.169.254",
            "100.64.0.1",
            "0.0.0.0",
            "::1",
            "::",
            "224.0.0.1",
            "255.255.255.255",
            "198.18.0.1",
            "::ffff:127.0.0.1",
            "::127.0.0.1",
            "64:ff9b::7f00:1",
            "2002:7f00:1::",
            "fd00::1",
            "fe80::1",
            "ff02::1",
            "168.63.129.16",
            "::ffff:168.63.129.16",
            "64:ff9b::a83f:8110",
            "64:ff9b:1::1",
            "64:ff9b:1:ffff::101:101",
            "2001::1",
            "2001:0:4136:e378:8000:63bf:3fff:fdd2",
        ] {
            assert!(is_internal(text.parse().unwrap()), "{text}");
        }
        for text in ["1.1.1.1", "100.128.0.1", "168.63.129.17", "2606:4700::1111", "2001:4860::8888", "::ffff:1.1.1.1"]
        {
            assert!(!is_internal(text.parse().unwrap()), "{text}");
        }
    }

    #[test]
    fn the_address_that_packets_leave_from_is_this_machines_own() {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
        // Without a route there is no such address, and nothing to check.
        if socket.connect((Ipv4Addr::new(1, 1, 1, 1), 9)).is_ok() {
            assert!(is_own(socket.local_addr().unwrap().ip()));
        }
        assert!(is_own(Ipv4Addr::LOCALHOST.into()));
        assert!(!is_own(Ipv4Addr::new(1, 1, 1, 1).into()));
    }
}
