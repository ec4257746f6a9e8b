//! The part of a URL that is the same for every request: scheme, host, port and a path prefix.

use std::fmt;
use std::str::FromStr;

use http::Uri;
use http::uri::{Authority, Scheme};

use super::Origin;

/// `http://host:port` or `https://host:port`, optionally with a path prefix.
#[derive(Clone, PartialEq, Eq)]
pub struct BaseUrl {
    scheme: Scheme,
    authority: Authority,
    /// Without a trailing slash.
    path: String,
}

/// Why a text is not a base URL.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UrlError {
    /// Not a URL at all.
    #[error("{0:?} is not a URL such as http://localhost:3000")]
    NotAUrl(String),
    /// Neither `http` nor `https`.
    #[error("{0:?} does not start with http:// or https://")]
    Scheme(String),
    /// It has a query, a user or a password. Requests add their own query, and passwords do not belong in a URL.
    #[error("{0:?} has a query, a user or a password, which a base URL must not have")]
    TooMuch(String),
}

impl BaseUrl {
    /// The origin that it points to.
    pub fn origin(&self) -> Origin {
        let tls = self.scheme == Scheme::HTTPS;
        let host = self.authority.host().trim_start_matches('[').trim_end_matches(']').to_owned();
        Origin { tls, host, port: self.authority.port_u16().unwrap_or(if tls { 443 } else { 80 }) }
    }

    /// Returns the URL of one request. `path_and_query` starts with a slash and is already encoded.
    pub(crate) fn join(&self, path_and_query: &str) -> Result<Uri, http::Error> {
        let path_and_query = format!("{}{path_and_query}", self.path);
        Uri::builder()
            .scheme(self.scheme.clone())
            .authority(self.authority.clone())
            .path_and_query(path_and_query)
            .build()
    }
}

impl FromStr for BaseUrl {
    type Err = UrlError;

    fn from_str(text: &str) -> Result<Self, UrlError> {
        let uri: Uri = text.trim().parse().map_err(|_| UrlError::NotAUrl(text.to_owned()))?;
        let parts = uri.into_parts();
        let (Some(scheme), Some(authority)) = (parts.scheme, parts.authority) else {
            return Err(UrlError::NotAUrl(text.to_owned()));
        };
        if scheme != Scheme::HTTP && scheme != Scheme::HTTPS {
            return Err(UrlError::Scheme(text.to_owned()));
        }
        let path = parts.path_and_query.as_ref();
        if path.is_some_and(|path| path.query().is_some()) || authority.as_str().contains('@') {
            return Err(UrlError::TooMuch(text.to_owned()));
        }
        if authority.host().is_empty() {
            return Err(UrlError::NotAUrl(text.to_owned()));
        }
        let path = path.map_or("", |path| path.path()).trim_end_matches('/').to_owned();
        Ok(Self { scheme, authority, path })
    }
}

impl fmt::Display for BaseUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}{}", self.scheme, self.authority, self.path)
    }
}

impl fmt::Debug for BaseUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_base_url_is_refused() {
        for bad in
            ["", "localhost", "/x", "ftp://a", "http://", "http://a/?b", "http://u:p@a", "http://a b", "http://:80"]
        {
            assert!(bad.parse::<BaseUrl>().is_err(), "{bad:?} was accepted");
        }
    }

    #[test]
    fn a_path_in_front_is_kept() {
        let base: BaseUrl = "http://localhost:3000/sandbox/i1/49983/".parse().unwrap();
        assert_eq!(
            base.join("/files?path=a").unwrap().to_string(),
            "http://localhost:3000/sandbox/i1/49983/files?path=a"
        );
        assert_eq!(base.to_string(), "http://localhost:3000/sandbox/i1/49983");
    }

    #[test]
    fn origins_know_their_port() {
        let origin = |text: &str| text.parse::<BaseUrl>().unwrap().origin();
        assert_eq!(origin("https://e2b.app"), Origin { tls: true, host: "e2b.app".into(), port: 443 });
        assert_eq!(origin("http://[::1]:8080"), Origin { tls: false, host: "::1".into(), port: 8080 });
        assert_eq!(origin("http://[::1]:8080").to_string(), "[::1]:8080");
    }
}
