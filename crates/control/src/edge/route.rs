//! Decides whether a request is for a sandbox, and for which one. In this order: a host name `{port}-{id}.domain`, the
//! routing headers, the path form `/sandbox/{id}/{port}/…`, a signed file URL. Everything else is for the API.

use http::request::Parts;
use http::{HeaderMap, Method, Uri};
use isopod_wire::{GUEST_PORT, SandboxId};

use super::refusal::Refusal;
use super::signature;
use crate::lifecycle::Fleet;
use crate::tls::is_or_is_below;

/// The destination of a request.
#[derive(Debug)]
pub(crate) enum Route {
    Api,
    Sandbox(Address),
    Refused(Refusal),
}

/// A port of a sandbox, and how the request named it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Address {
    pub(crate) sandbox: SandboxId,
    pub(crate) port: u16,
    pub(crate) form: Form,
}

/// How a request names a sandbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    Host,
    Headers,
    /// A signed file URL.
    Signature,
    /// A path prefix. Contains the path that the sandbox sees.
    Path(String),
}

impl Form {
    /// Whether a browser attributes such a URL to the API's origin, so that the response must be restricted.
    pub(super) fn shares_the_apis_origin(&self) -> bool {
        match self {
            Self::Signature | Self::Path(_) => true,
            // A host name is an origin of its own, and neither a link nor a form can set headers.
            Self::Host | Self::Headers => false,
        }
    }
}

/// The domains below which sandboxes have names: the server's own, and others that it serves.
#[derive(Clone, Debug)]
pub(crate) struct Domains {
    /// `host[:port]`, as it is given to clients.
    advertised: String,
    own: String,
    others: Vec<String>,
}

const ID_HEADER: &str = "e2b-sandbox-id";
const PORT_HEADER: &str = "e2b-sandbox-port";
const PATH_PREFIX: &str = "/sandbox/";

impl Domains {
    /// `domain` is `host[:port]`. The other domains need no port.
    pub(crate) fn new(domain: &str, others: &[String]) -> Self {
        let lower = |domain: &str| host_name(domain).to_ascii_lowercase();
        let others = others.iter().map(|other| lower(other)).collect();
        Self { advertised: domain.to_owned(), own: lower(domain), others }
    }

    pub(crate) fn own(&self) -> &str {
        &self.own
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = &str> {
        std::iter::once(self.own.as_str()).chain(self.others.iter().map(String::as_str))
    }

    /// Returns the domain for the response to a request, with its port. A client that used another domain looks for
    /// sandboxes below it, and may be unable to resolve any other.
    pub(crate) fn advertised_to(&self, parts: &Parts) -> String {
        let host = host_of(parts).unwrap_or_default();
        let name = host_name(host);
        let Some(other) = self.others.iter().find(|other| is_or_is_below(name.trim_end_matches('.'), other)) else {
            return self.advertised.clone();
        };
        match host.strip_prefix(name) {
            Some(port) if !matches!(port, ":443" | ":80") => format!("{other}{port}"),
            _ => other.clone(),
        }
    }
}

pub(crate) fn route(parts: &Parts, domains: &Domains, fleet: &Fleet) -> Route {
    let found = by_host(parts, domains)
        .or_else(|| by_headers(&parts.headers))
        .or_else(|| by_path(&parts.uri))
        .or_else(|| by_signature(parts, fleet))
        .or_else(|| below_unknown_domain(parts, domains, fleet));
    match found {
        None => Route::Api,
        Some(Ok(address)) => Route::Sandbox(address),
        Some(Err(refusal)) => Route::Refused(refusal),
    }
}

/// `None` if the request does not use this form, an error if it uses it wrongly.
pub(super) type Found = Option<Result<Address, Refusal>>;

pub(super) fn by_host(parts: &Parts, domains: &Domains) -> Found {
    by_host_name(host_of(parts)?, domains)
}

/// `host` may have a port.
pub(super) fn by_host_name(host: &str, domains: &Domains) -> Found {
    let host = host.to_ascii_lowercase();
    let (label, rest) = host_name(&host).split_once('.')?;
    let rest = rest.trim_end_matches('.');
    if rest != "localhost" && !domains.all().any(|domain| rest == domain) {
        return None;
    }
    named_by(label)
}

/// Refuses a request for one of our sandboxes below an unknown domain. Without this it would go to the API, whose
/// response would not explain the mistake. Other names of this shape may belong to the server itself, for example
/// through a port forwarder.
fn below_unknown_domain(parts: &Parts, domains: &Domains, fleet: &Fleet) -> Found {
    let host = host_of(parts)?.to_ascii_lowercase();
    let (label, _) = host_name(&host).split_once('.')?;
    let address = named_by(label)?.ok()?;
    fleet.find(&address.sandbox)?;
    Some(Err(Refusal::UnknownDomain(address.sandbox, domains.own.clone())))
}

/// `{port}-{id}`
fn named_by(label: &str) -> Found {
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

/// Returns the host name that the client used: the Host header, or the authority in HTTP/2.
pub(crate) fn host_of(parts: &Parts) -> Option<&str> {
    let header = parts.headers.get(http::header::HOST).and_then(|value| value.to_str().ok());
    header.or_else(|| parts.uri.authority().map(|authority| authority.as_str()))
}

/// Returns `host[:port]` without the port.
pub(crate) fn host_name(host: &str) -> &str {
    match host.rsplit_once(':') {
        // An address in brackets contains colons.
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

    fn domain() -> Domains {
        Domains::new("Isopod.localhost:3000", &["E2B.app".to_owned()])
    }

    #[test]
    fn an_answer_names_the_domain_that_the_request_came_by() {
        let advertised = |host: &str| domain().advertised_to(&parts(host, "/", &[]));
        for host in ["api.e2b.app", "e2b.app", "API.E2B.APP:443", "sandbox.e2b.app.", "api.e2b.app:80"] {
            assert_eq!(advertised(host), "e2b.app", "{host}");
        }
        assert_eq!(advertised("api.e2b.app:8443"), "e2b.app:8443");
        for host in ["127.0.0.1:3000", "api.isopod.localhost:3000", "evil.com", "xe2b.app", "e2b.app.evil.com", ""] {
            assert_eq!(advertised(host), "Isopod.localhost:3000", "{host}");
        }
    }

    #[test]
    fn hosts_that_name_no_sandbox_are_for_the_api() {
        for host in
            ["localhost:3000", "127.0.0.1", "[::1]:3000", "isopod.localhost", "api.isopod.localhost", "api.e2b.app"]
        {
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
        for host in [
            "3000-iabc.isopod.localhost:3000",
            "3000-IABC.ISOPOD.localhost",
            "3000-iabc-x.localhost",
            "3000-iabc.e2b.app",
            "3000-iabc.e2b.app.:443",
        ] {
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
