//! The destination of a request. The policy decides which addresses it may reach.

use std::net::SocketAddr;

use crate::{Allowed, OutboundError, Policy};
use http::Uri;
use http::uri::Scheme;

/// A validated URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    pub tls: bool,
    pub host: String,
    pub port: u16,
    pub path: String,
    /// The value for the `Host` header.
    pub authority: String,
}

/// Why a URL is not a valid target.
#[derive(Debug, thiserror::Error)]
pub enum TargetError {
    #[error("{0:?} is not an http or https URL")]
    NotAUrl(String),
    #[error("the URL must not contain a user name")]
    UserName,
    #[error(transparent)]
    Outbound(#[from] OutboundError),
}

impl Target {
    pub fn parse(url: &str) -> Result<Self, TargetError> {
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

    /// The addresses to connect to. Fails if the policy forbids one of the host's addresses.
    pub async fn resolve(&self, policy: &Policy) -> Result<Vec<SocketAddr>, TargetError> {
        Ok(policy.resolve(&self.host, self.port).await?)
    }

    /// The host and port, for exempting them from the policy.
    pub fn place(&self) -> Allowed {
        Allowed::host(&self.host, self.port)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
