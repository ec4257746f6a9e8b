//! Sends one request over a connection of its own: TCP, TLS for https, HTTP/1.1.

use std::io;
use std::sync::OnceLock;
use std::time::Duration;

use bytes::Bytes;
use http::header::{HOST, USER_AGENT};
use http::uri::Authority;
use http::{HeaderMap, HeaderValue, Method, Request, Response, Uri};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use isopod_outbound::{Allowed, OutboundError, Policy, Trust};
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsConnector;

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
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<OutboundError>());
    matches!(inner, Some(OutboundError::Internal { .. }))
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
    pub(super) async fn get(&self, uri: &Uri, headers: HeaderMap) -> io::Result<Response<Incoming>> {
        self.send(Method::GET, uri, headers, Bytes::new()).await
    }

    /// Sends a request and waits for the head of the response.
    pub(super) async fn send(
        &self,
        method: Method,
        uri: &Uri,
        headers: HeaderMap,
        body: Bytes,
    ) -> io::Result<Response<Incoming>> {
        let host = uri.host().ok_or_else(|| invalid("the address has no host"))?;
        let is_tls = uri.scheme_str() == Some("https");
        let port = uri.port_u16().unwrap_or(if is_tls { 443 } else { 80 });
        let connecting = async {
            let stream = self.policy.connect(host, port).await.map_err(|error| match error {
                OutboundError::Connect { source, .. } | OutboundError::Resolve { source, .. } => source,
                refused => io::Error::other(refused),
            })?;
            if is_tls {
                let name = ServerName::try_from(host.trim_matches(['[', ']']).to_owned());
                let name = name.map_err(|_| invalid("the host name is not valid in a certificate"))?;
                let stream = tls().connect(name, stream).await?;
                return Ok::<Box<dyn Stream>, io::Error>(Box::new(stream));
            }
            Ok(Box::new(stream) as Box<dyn Stream>)
        };
        let stream = within(CONNECT_TIMEOUT, connecting).await?;
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(io::Error::other)?;
        tokio::spawn(connection);
        let path = uri.path_and_query().map_or("/", |path| path.as_str());
        let request = Request::builder().method(method).uri(path).body(Full::new(body));
        let mut request = request.map_err(io::Error::other)?;
        *request.headers_mut() = headers;
        let authority = uri.authority().map_or(host, |authority| authority.as_str());
        let authority = HeaderValue::try_from(authority).map_err(io::Error::other)?;
        request.headers_mut().insert(HOST, authority);
        request.headers_mut().insert(USER_AGENT, HeaderValue::from_static("isopod"));
        within(REPLY_TIMEOUT, async { sender.send_request(request).await.map_err(io::Error::other) }).await
    }
}

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

fn tls() -> &'static TlsConnector {
    static TRUST: OnceLock<Trust> = OnceLock::new();
    TRUST.get_or_init(Trust::system).connector()
}

async fn within<T>(limit: Duration, work: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    match tokio::time::timeout(limit, work).await {
        Ok(done) => done,
        Err(_) => Err(io::Error::new(io::ErrorKind::TimedOut, format!("no response within {} s", limit.as_secs()))),
    }
}

fn invalid(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, what.to_owned())
}
