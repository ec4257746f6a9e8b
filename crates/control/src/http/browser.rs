//! Protects the API from web pages. A page of another site must not reach a server on the visitor's machine, neither by
//! cross-origin requests nor by pointing a host name of its own at it (DNS rebinding).

use axum::body::Body;
use axum::response::IntoResponse as _;
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method, Response, StatusCode, header};
use isopod_api::ApiError;

use crate::edge::{Domains, host_name, host_of};

/// Which pages may use the API, and under which host names of the server.
#[derive(Debug)]
pub(crate) struct BrowserRules {
    pub(crate) domains: Domains,
    /// Origins whose pages may use the API, in addition to loopback and the domain itself.
    pub(crate) allowed_origins: Vec<String>,
    /// Host names that browsers may use, in addition to loopback, IP addresses and the domain itself.
    pub(crate) allowed_hosts: Vec<String>,
}

/// What a page may read of the response.
#[derive(Debug)]
pub(crate) struct Permission {
    /// The origin that may read it, if it is a configured one.
    origin: Option<HeaderValue>,
}

impl Permission {
    pub(crate) fn mark(&self, headers: &mut HeaderMap) {
        let Some(origin) = &self.origin else { return };
        headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin.clone());
        headers.insert(
            header::ACCESS_CONTROL_EXPOSE_HEADERS,
            HeaderValue::from_static("x-next-token, x-total-running, mcp-session-id, www-authenticate"),
        );
        headers.append(header::VARY, HeaderValue::from_static("origin"));
    }
}

impl BrowserRules {
    /// Admits requests that do not come from a browser, or that come from an allowed page. The error is the response to
    /// send.
    pub(crate) fn check(&self, parts: &Parts) -> Result<Permission, Box<Response<Body>>> {
        let origin = parts.headers.get(header::ORIGIN);
        let is_browser = origin.is_some() || parts.headers.contains_key("sec-fetch-site");
        if is_browser && !self.is_our_host(parts) {
            let message = "this host name does not belong to the server; see the allowed hosts setting";
            return Err(Box::new(ApiError::forbidden(message).into_response()));
        }
        let Some(origin) = origin else { return Ok(Permission { origin: None }) };
        let text = origin.to_str().unwrap_or_default();
        let configured =
            self.allowed_origins.iter().any(|allowed| allowed == "*" || allowed.eq_ignore_ascii_case(text));
        if !configured && !self.is_our_origin(text) && !self.is_own_page(parts, text) {
            let message = "pages of this origin may not use the API; see the allowed origins setting";
            return Err(Box::new(ApiError::forbidden(message).into_response()));
        }
        let permission = Permission { origin: configured.then(|| origin.clone()) };
        if configured && parts.method == Method::OPTIONS {
            return Err(Box::new(preflight(&permission)));
        }
        Ok(permission)
    }

    fn is_our_host(&self, parts: &Parts) -> bool {
        let Some(host) = host_of(parts) else { return false };
        let name = host_name(host).to_ascii_lowercase();
        let is_below = |domain| name.strip_suffix(domain).is_some_and(|label| label == "api." || label == "sandbox.");
        self.is_ours(&name) || self.domains.all().any(is_below) || self.is_named_by_user(&name)
    }

    /// An IP address cannot be rebound, so the user means this machine.
    fn is_named_by_user(&self, name: &str) -> bool {
        self.allowed_hosts.iter().any(|allowed| allowed.eq_ignore_ascii_case(name))
            || name.trim_matches(['[', ']']).parse::<std::net::IpAddr>().is_ok()
    }

    /// Whether a page of this server sent the request to where it came from.
    fn is_own_page(&self, parts: &Parts, origin: &str) -> bool {
        let page = origin.split_once("://").map(|(_, host)| host);
        host_of(parts).is_some_and(|host| page == Some(host) && self.is_named_by_user(host_name(host)))
    }

    /// Whether the page comes from loopback or from the domain itself. A sandbox's name below the domain does not
    /// count. Neither do the other domains that the server serves, because in most browsers they belong to another
    /// site.
    fn is_our_origin(&self, origin: &str) -> bool {
        let Some((_, host)) = origin.split_once("://") else { return false };
        let name = host_name(host).to_ascii_lowercase();
        let loopback =
            name.trim_matches(['[', ']']).parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback());
        loopback || self.is_ours(&name)
    }

    fn is_ours(&self, name: &str) -> bool {
        name == "localhost" || name == self.domains.own()
    }
}

fn preflight(permission: &Permission) -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::NO_CONTENT;
    let headers = response.headers_mut();
    permission.mark(headers);
    headers.insert(
        header::ACCESS_CONTROL_ALLOW_METHODS,
        HeaderValue::from_static("GET, POST, PUT, PATCH, DELETE, OPTIONS"),
    );
    headers.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, HeaderValue::from_static("*, authorization, x-api-key"));
    headers.insert(header::ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static("600"));
    response
}
