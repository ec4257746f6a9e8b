//! Sends one request over a connection of its own, with a deadline for the connection and one for the response.

use std::io;
use std::sync::OnceLock;
use std::time::Duration;

use bytes::Bytes;
use http::header::{HOST, USER_AGENT};
use http::uri::Authority;
use http::{HeaderMap, HeaderValue, Method, Request, Response, Uri};
use http_body_util::Full;
use isopod_outbound::{
    Allowed, OutboundError, Policy, RequestError, ResponseBody, Target, TargetError, Trust, connect,
};

/// A registry that does not accept the connection within this time is not available.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
const REPLY_TIMEOUT: Duration = Duration::from_secs(60);

/// Opens connections.
#[derive(Clone, Debug)]
pub(super) struct Dialer {
    /// Checked for every connection, and so for every redirect.
    policy: Policy,
}

/// Whether the error is the refusal of an internal address.
pub(super) fn is_internal(error: &io::Error) -> bool {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<RequestError>());
    inner.is_some_and(RequestError::is_internal)
}

impl Dialer {
    pub(super) fn new(policy: Policy) -> Self {
        Self { policy }
    }

    /// Also allows this location, which the settings name, at whatever address it is.
    pub(super) fn with_place(policy: Policy, place: &str, plain: bool) -> Self {
        let authority = place.split('/').next().unwrap_or(place).parse::<Authority>();
        let port = if plain { 80 } else { 443 };
        let named = authority.map(|it| Allowed::host(it.host(), it.port_u16().unwrap_or(port)));
        Self { policy: named.into_iter().fold(policy, Policy::and) }
    }

    /// Sends a GET request and waits for the head of the response.
    pub(super) async fn get(&self, uri: &Uri, headers: HeaderMap) -> io::Result<Response<ResponseBody>> {
        self.send(Method::GET, uri, headers, Bytes::new()).await
    }

    /// Sends a request and waits for the head of the response.
    pub(super) async fn send(
        &self,
        method: Method,
        uri: &Uri,
        headers: HeaderMap,
        body: Bytes,
    ) -> io::Result<Response<ResponseBody>> {
        let target = Target::parse(&uri.to_string()).map_err(|error| failure(error.into()))?;
        let request = Request::builder().method(method).uri(&target.path).body(Full::new(body));
        let mut request = request.map_err(io::Error::other)?;
        *request.headers_mut() = headers;
        let authority = HeaderValue::try_from(&target.authority).map_err(io::Error::other)?;
        request.headers_mut().insert(HOST, authority);
        request.headers_mut().insert(USER_AGENT, HeaderValue::from_static("isopod"));
        let connection = within(CONNECT_TIMEOUT, connect(&target, trust(), &self.policy)).await?;
        within(REPLY_TIMEOUT, connection.send(request)).await
    }
}

fn trust() -> &'static Trust {
    static TRUST: OnceLock<Trust> = OnceLock::new();
    TRUST.get_or_init(Trust::system)
}

async fn within<T>(limit: Duration, work: impl Future<Output = Result<T, RequestError>>) -> io::Result<T> {
    match tokio::time::timeout(limit, work).await {
        Ok(done) => done.map_err(failure),
        Err(_) => Err(io::Error::new(io::ErrorKind::TimedOut, format!("no response within {} s", limit.as_secs()))),
    }
}

/// Callers show only the error itself, so it must be the one that says most.
fn failure(error: RequestError) -> io::Error {
    match error {
        RequestError::Connect(source)
        | RequestError::Tls(source)
        | RequestError::Target(TargetError::Outbound(OutboundError::Resolve { source, .. })) => source,
        RequestError::Http(source) => io::Error::other(source),
        other => io::Error::other(other),
    }
}
