//! Where a webhook may go. A URL that someone else wrote must not make this server talk to machines that only it can
//! reach, so names are resolved here, every address is looked at, and exactly a looked-at address is dialled.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use http::Uri;
use http::uri::Scheme;

/// A checked URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) tls: bool,
    pub(crate) host: String,
    pub(crate) port: u16,
    pub(crate) path: String,
    /// As the `Host` header says it.
    pub(crate) authority: String,
}

/// Why a URL is no target.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TargetError {
    #[error("{0:?} is not an http or https URL")]
    NotAUrl(String),
    #[error("a webhook URL cannot carry a user name")]
    UserName,
    #[error("could not resolve {host}")]
    Resolve { host: String, source: std::io::Error },
    #[error("{host} is an internal address ({address}), which webhooks may not reach")]
    Internal { host: String, address: IpAddr },
    #[error("{0} has no address")]
    NoAddress(String),
}

impl Target {
    pub(crate) fn parse(url: &str) -> Result<Self, TargetError> {
        let bad = || TargetError::NotAUrl(url.chars().take(200).collect());
        let uri: Uri = url.parse().map_err(|_| bad())?;
        let authority = uri.authority().ok_or_else(bad)?;
        let tls = match uri.scheme() {
            Some(scheme) if *scheme == Scheme::HTTP => false,
            Some(scheme) if *scheme == Scheme::HTTPS => true,
            _ => return Err(bad()),
        };
        if authority.as_str().contains('@') {
            return Err(TargetError::UserName);
        }
        Ok(Self {
            tls,
            host: authority.host().trim_matches(['[', ']']).to_owned(),
            port: authority.port_u16().unwrap_or(if tls { 443 } else { 80 }),
            path: uri.path_and_query().map_or("/", |path| path.as_str()).to_owned(),
            authority: authority.to_string(),
        })
    }

    /// An address to dial. One internal address among several condemns the name: it may be chosen next time.
    pub(crate) async fn resolve(&self, allow_internal: bool) -> Result<SocketAddr, TargetError> {
        let failed = |source| TargetError::Resolve { host: self.host.clone(), source };
        let found: Vec<SocketAddr> =
            tokio::net::lookup_host((self.host.as_str(), self.port)).await.map_err(failed)?.collect();
        let internal = found.iter().map(SocketAddr::ip).find(|address| !allow_internal && is_internal(*address));
        match (internal, found.first()) {
            (Some(address), _) => Err(TargetError::Internal { host: self.host.clone(), address }),
            (None, Some(address)) => Ok(*address),
            (None, None) => Err(TargetError::NoAddress(self.host.clone())),
        }
    }
}

fn is_internal(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => is_internal_v4(address),
        IpAddr::V6(address) => is_internal_v6(address),
    }
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
}

/// Also the forms in which an IPv4 address hides in an IPv6 one.
fn is_internal_v6(address: Ipv6Addr) -> bool {
    let words = address.segments();
    let inner = |high: u16, low: u16| Ipv4Addr::from_bits(u32::from(high) << 16 | u32::from(low));
    let hidden = match words {
        [0, 0, 0, 0, 0, 0 | 0xffff, high, low] => Some(inner(high, low)),
        [0x64, 0xff9b, _, _, _, _, high, low] => Some(inner(high, low)),
        [0x2002, high, low, ..] => Some(inner(high, low)),
        _ => None,
    };
    hidden.is_some_and(is_internal_v4)
        || address.is_loopback()
        || address.is_unspecified()
        || address.is_multicast()
        || (words[0] & 0xfe00) == 0xfc00
        || (words[0] & 0xffc0) == 0xfe80
        || (words[0] & 0xffc0) == 0xfec0
        || (words[0] == 0x2001 && words[1] == 0xdb8)
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
        ] {
            assert!(is_internal(text.parse().unwrap()), "{text}");
        }
        for text in ["1.1.1.1", "100.128.0.1", "2606:4700::1111", "::ffff:1.1.1.1"] {
            assert!(!is_internal(text.parse().unwrap()), "{text}");
        }
    }

    #[test]
    fn odd_urls_are_refused() {
        for bad in ["", "/x", "ftp://a/", "http://user@a/", "http:///x", "a.example"] {
            assert!(Target::parse(bad).is_err(), "{bad:?}");
        }
        let good = Target::parse("http://a.example:8080/x?y").unwrap();
        assert_eq!((good.host.as_str(), good.port, good.path.as_str()), ("a.example", 8080, "/x?y"));
        let encrypted = Target::parse("https://a.example").unwrap();
        assert_eq!((encrypted.tls, encrypted.port, encrypted.path.as_str()), (true, 443, "/"));
    }

    #[tokio::test]
    async fn numbers_that_resolvers_read_as_addresses_are_seen_through() {
        for url in ["http://127.0.0.1/", "http://[::1]/", "http://localhost/", "http://2130706433/", "http://0x7f.1/"] {
            let resolved = Target::parse(url).unwrap().resolve(false).await;
            assert!(resolved.is_err(), "{url}: {resolved:?}");
        }
    }
}
