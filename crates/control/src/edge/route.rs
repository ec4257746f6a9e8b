//! Whether a request is for a sandbox, and for which. In this order: a Host name `{port}-{id}.domain`, the routing
//! headers, the path form `/sandbox/{id}/{port}/…`, a signed file URL. Everything else is for the API.

use http::request::Parts;
use http::{HeaderMap, Method, Uri};
use isopod_wire::{GUEST_PORT, SandboxId};

use super::refusal::Refusal;
use super::signature;
use crate::lifecycle::Fleet;

/// Where a request goes.
#[derive(Debug)]
pub(crate) enum Route {
    Api,
    Sandbox(Address),
    Refused(Refusal),
}

/// A port of a sandbox, and how it was named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Address {
    pub(crate) sandbox: SandboxId,
    pub(crate) port: u16,
    pub(crate) form: Form,
}

/// How a sandbox was named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    Host,
    Headers,
    /// By a signed file URL.
    Signature,
    /// The path that the sandbox sees.
    Path(String),
}

impl Form {
    /// Whether a browser that opens such a URL takes what it shows for the API's own, so that it must be fenced in.
    pub(super) fn shares_the_apis_origin(&self) -> bool {
        match self {
            Self::Signature | Self::Path(_) => true,
            // A name of its own; and no link and no form can set headers.
            Self::Host | Self::Headers => false,
        }
    }
}

/// The name under which sandboxes have theirs.
#[derive(Clone, Debug)]
pub(crate) struct Domain {
    host: String,
}

const ID_HEADER: &str = "e2b-sandbox-id";
const PORT_HEADER: &str = "e2b-sandbox-port";
const PATH_PREFIX: &str = "/sandbox/";

impl Domain {
    /// From `host[:port]`.
    pub(crate) fn new(domain: &str) -> Self {
        Self { host: host_name(domain).to_ascii_lowercase() }
    }

    pub(crate) fn host(&self) -> &str {
        &self.host
    }
}

pub(crate) fn route(parts: &Parts, domain: &Domain, fleet: &Fleet) -> Route {
    let found = by_host(parts, domain)
        .or_else(|| by_headers(&parts.headers))
        .or_else(|| by_path(&parts.uri))
        .or_else(|| by_signature(parts, fleet));
    match found {
        None => Route::Api,
        Some(Ok(address)) => Route::Sandbox(address),
        Some(Err(refusal)) => Route::Refused(refusal),
    }
}

/// `None`: this form was not used. An error: it was, but wrongly.
pub(super) type Found = Option<Result<Address, Refusal>>;

pub(super) fn by_host(parts: &Parts, domain: &Domain) -> Found {
    let host = host_of(parts)?.to_ascii_lowercase();
    let (label, rest) = host_name(&host).split_once('.')?;
    if rest.trim_end_matches('.') != domain.host && rest != "localhost" {
        return None;
    }
    let mut pieces = label.split('-');
    let (port, id) = (pieces.next()?, pieces.next());
    if !port.bytes().all(|byte| byte.is_ascii_digit()) || port.is_empty() {
        return None;
    }
    let (Ok(port), Some(id)) = (port.parse(), id) else { return Some(Err(Refusal::InvalidHost)) };
    Some(address(id, port, Form::Host))
}

pub(super) fn by_headers(headers: &HeaderMap) -> Found {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
    match (text(ID_HEADER), text(PORT_HEADER)) {
        (None, None) => None,
        (Some(id), Some(port)) => match port.parse() {
            Ok(port) => Some(address(id, port, Form::Headers)),
            Err(_) => Some(Err(Refusal::InvalidPort)),
        },
        (None, Some(_)) => Some(Err(Refusal::MissingHeader(ID_HEADER))),
        (Some(_), None) => Some(Err(Refusal::MissingHeader(PORT_HEADER))),
    }
}

pub(super) fn by_path(uri: &Uri) -> Found {
    let rest = uri.path().strip_prefix(PATH_PREFIX)?;
    let (id, rest) = rest.split_once('/')?;
    let (port, path) = rest.split_once('/').unwrap_or((rest, ""));
    let Ok(port) = port.parse() else { return Some(Err(Refusal::InvalidPort)) };
    Some(address(id, port, Form::Path(format!("/{path}"))))
}

fn by_signature(parts: &Parts, fleet: &Fleet) -> Found {
    let is_file = parts.uri.path() == "/files" && parts.method != Method::DELETE;
    let signed = is_file.then(|| signature::Signed::from_query(parts.uri.query().unwrap_or_default())).flatten()?;
    match signed.find(&parts.method, fleet) {
        Some(sandbox) => Some(Ok(Address { sandbox, port: GUEST_PORT, form: Form::Signature })),
        None => Some(Err(Refusal::InvalidSignature)),
    }
}

fn address(id: &str, port: u16, form: Form) -> Result<Address, Refusal> {
    let sandbox = id.parse().map_err(|_| Refusal::InvalidSandboxId)?;
    if port == 0 {
        return Err(Refusal::InvalidPort);
    }
    Ok(Address { sandbox, port, form })
}

/// What the client calls us: the Host header, or in HTTP/2 the authority.
pub(crate) fn host_of(parts: &Parts) -> Option<&str> {
    let header = parts.headers.get(http::header::HOST).and_then(|value| value.to_str().ok());
    header.or_else(|| parts.uri.authority().map(|authority| authority.as_str()))
}

/// `host[:port]` without the port.
pub(crate) fn host_name(host: &str) -> &str {
    match host.rsplit_once(':') {
        // An address in brackets has colons of its own.
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    }
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    fn parts(host: &str, path: &str, headers: &[(&str, &str)]) -> Parts {
        let mut request = Request::get(path).header("host", host);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.body(()).unwrap().into_parts().0
    }

    fn domain() -> Domain {
        Domain::new("Isopod.localhost:3000")
    }

    #[test]
    fn hosts_that_name_no_sandbox_are_for_the_api() {
        for host in ["localhost:3000", "127.0.0.1", "[::1]:3000", "isopod.localhost", "api.isopod.localhost"] {
            assert!(by_host(&parts(host, "/", &[]), &domain()).is_none(), "{host}");
        }
        assert!(by_host(&parts("3000-iabc.evil.com", "/", &[]), &domain()).is_none());
        assert!(by_host(&parts("3000-iabc.isopod.localhost.evil.com", "/", &[]), &domain()).is_none());
    }

    #[test]
    fn hosts_that_name_a_sandbox_wrongly_are_refused() {
        for host in ["3000.isopod.localhost", "99999-iabc.isopod.localhost", "0-iabc.isopod.localhost", "1-.localhost"]
        {
            assert!(matches!(by_host(&parts(host, "/", &[]), &domain()), Some(Err(_))), "{host}");
        }
    }

    #[test]
    fn a_host_names_port_and_sandbox() {
        for host in ["3000-iabc.isopod.localhost:3000", "3000-IABC.ISOPOD.localhost", "3000-iabc-x.localhost"] {
            let found = by_host(&parts(host, "/", &[]), &domain()).unwrap().unwrap();
            assert_eq!((found.sandbox.as_str(), found.port), ("iabc", 3000), "{host}");
        }
    }

    #[test]
    fn both_headers_are_needed() {
        let found = |headers: &[(&str, &str)]| by_headers(&parts("localhost", "/", headers).headers);
        assert!(found(&[]).is_none());
        assert!(matches!(found(&[(ID_HEADER, "iabc")]), Some(Err(Refusal::MissingHeader(PORT_HEADER)))));
        assert!(matches!(found(&[(PORT_HEADER, "80")]), Some(Err(Refusal::MissingHeader(ID_HEADER)))));
        assert!(matches!(found(&[(ID_HEADER, "../x"), (PORT_HEADER, "80")]), Some(Err(Refusal::InvalidSandboxId))));
        assert!(matches!(found(&[(ID_HEADER, "iabc"), (PORT_HEADER, "80")]), Some(Ok(_))));
    }

    #[test]
    fn the_path_form_gives_the_sandbox_its_own_root() {
        let found = |path: &str| by_path(&path.parse().unwrap());
        assert!(found("/sandboxes/iabc").is_none());
        let form = |path: &str| found(path).unwrap().unwrap().form;
        assert_eq!(form("/sandbox/iabc/3000/a/b?c"), Form::Path("/a/b".to_owned()));
        assert_eq!(form("/sandbox/iabc/3000"), Form::Path("/".to_owned()));
        assert!(matches!(found("/sandbox/iabc/http/a"), Some(Err(Refusal::InvalidPort))));
    }
}
