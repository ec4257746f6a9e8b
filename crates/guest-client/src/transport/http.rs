//! An HTTP client for one server. Its connections are kept open for a while and reused.

use std::fmt;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use http::header::InvalidHeaderValue;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, Uri};
use hyper::body::Incoming;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::client::legacy::{Client, Error as ClientError, ResponseFuture};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use isopod_wire::SandboxId;

use super::{BaseUrl, Body, BoxError, ByteStream, Connector, Origin, TransportError};

/// Shorter than the idle timeout of servers, so that they rarely close a connection that is about to be used.
const IDLE: Duration = Duration::from_secs(20);
const MAX_IDLE: usize = 32;

const SANDBOX_ID: HeaderName = HeaderName::from_static("e2b-sandbox-id");
const SANDBOX_PORT: HeaderName = HeaderName::from_static("e2b-sandbox-port");
const ACCESS_TOKEN: HeaderName = HeaderName::from_static("x-access-token");
const TRAFFIC_TOKEN: HeaderName = HeaderName::from_static("e2b-traffic-access-token");

/// Sends requests to one base URL, with common headers.
#[derive(Clone)]
pub struct Http {
    client: Client<Dialer, Body>,
    base: BaseUrl,
    target: String,
    headers: HeaderMap,
    timeout: Duration,
    /// Whether a lost peer is always noticed.
    notices_a_lost_peer: bool,
}

impl Http {
    /// Creates a client. Sends nothing yet.
    pub fn new(connector: Connector, base: BaseUrl, headers: HeaderMap, timeout: Duration) -> Self {
        let origin = base.origin();
        let target = connector.target(&origin);
        let notices_a_lost_peer = connector.notices_a_lost_peer();
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE)
            .pool_max_idle_per_host(MAX_IDLE)
            .build(Dialer { connector, origin });
        Self { client, base, target, headers, timeout, notices_a_lost_peer }
    }

    pub(crate) fn target(&self) -> &str {
        &self.target
    }

    pub(crate) fn notices_a_lost_peer(&self) -> bool {
        self.notices_a_lost_peer
    }

    /// The time limit of an exchange.
    pub fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Sets the time limit of an exchange.
    pub fn set_timeout(&mut self, timeout: Duration) {
        self.timeout = timeout;
    }

    /// Adds the headers that an edge routes by.
    pub fn route_to(&mut self, sandbox: &SandboxId, port: u16) {
        let id = HeaderValue::try_from(sandbox.as_str()).expect("an id has only letters and digits");
        self.headers.insert(SANDBOX_ID, id);
        self.headers.insert(SANDBOX_PORT, HeaderValue::from(port));
    }

    /// Adds the tokens for a sandbox and its ports.
    ///
    /// # Errors
    /// If one has characters that a header cannot contain.
    pub fn show_tokens(&mut self, access: Option<&str>, traffic: Option<&str>) -> Result<(), InvalidHeaderValue> {
        for (name, token) in [(ACCESS_TOKEN, access), (TRAFFIC_TOKEN, traffic)] {
            let Some(token) = token else { continue };
            let mut value = HeaderValue::try_from(token)?;
            value.set_sensitive(true);
            self.headers.insert(name, value);
        }
        Ok(())
    }

    /// Creates a request with the common headers and those in `headers`. `path_and_query` starts with a slash and is
    /// already encoded.
    ///
    /// # Errors
    /// [`TransportError::Request`] if the path is not valid in a URL.
    pub fn request(
        &self,
        method: Method,
        path_and_query: &str,
        headers: HeaderMap,
        body: Body,
    ) -> Result<Request<Body>, TransportError> {
        let uri = self.base.join(path_and_query).map_err(TransportError::Request)?;
        let mut request = Request::new(body);
        *request.method_mut() = method;
        *request.uri_mut() = uri;
        *request.headers_mut() = self.headers.clone();
        request.headers_mut().extend(headers);
        Ok(request)
    }

    /// Sends a request and waits for the head of the reply, without a time limit.
    ///
    /// # Errors
    /// If the server cannot be reached or the connection breaks.
    pub async fn send(&self, request: Request<Body>) -> Result<Response<Incoming>, TransportError> {
        self.start(request).await.map_err(|error| self.failed(error))
    }

    /// Not `async`, so that the client is compiled here. The body of an `async fn` is compiled in every crate that polls it.
    fn start(&self, request: Request<Body>) -> ResponseFuture {
        self.client.request(request)
    }

    /// Sends a request and reads the reply with `read`, within the client's timeout.
    ///
    /// # Errors
    /// Like [`Self::send`], [`TransportError::Timeout`], and the errors of `read`.
    pub async fn exchange<T, E, Fut>(
        &self,
        request: Request<Body>,
        read: impl FnOnce(Response<Incoming>) -> Fut,
    ) -> Result<T, E>
    where
        E: From<TransportError>,
        Fut: Future<Output = Result<T, E>>,
    {
        let work = async { read(self.send(request).await?).await };
        self.within(self.timeout, work).await
    }

    /// Runs `work` within the limit.
    ///
    /// # Errors
    /// [`TransportError::Timeout`] if it takes longer, and the errors of `work`.
    pub async fn within<T, E: From<TransportError>>(
        &self,
        limit: Duration,
        work: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        match tokio::time::timeout(limit, work).await {
            Ok(result) => result,
            Err(_) => Err(TransportError::Timeout { target: self.target.clone(), waited: limit }.into()),
        }
    }

    /// Creates the error for an incomplete reply.
    pub fn broken(&self, source: impl Into<BoxError>) -> TransportError {
        TransportError::Broken { target: self.target.clone(), source: source.into() }
    }

    fn failed(&self, error: ClientError) -> TransportError {
        let target = self.target.clone();
        if error.is_connect() {
            return TransportError::Connect { target, source: innermost(error) };
        }
        match caused_by_own_body(&error) {
            true => TransportError::Source { target, source: error.into() },
            false => TransportError::Broken { target, source: error.into() },
        }
    }
}

impl fmt::Debug for Http {
    /// Does not print the headers, because they contain secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Http").field("base", &self.base).field("target", &self.target).finish_non_exhaustive()
    }
}

/// Unwraps the error of the connector, to which the client's own error adds nothing.
fn innermost(error: ClientError) -> BoxError {
    let source = std::error::Error::source(&error).and_then(|source| source.downcast_ref::<io::Error>());
    match source {
        Some(source) => io::Error::new(source.kind(), source.to_string()).into(),
        None => error.into(),
    }
}

fn caused_by_own_body(error: &ClientError) -> bool {
    let source = std::error::Error::source(error).and_then(|source| source.downcast_ref::<hyper::Error>());
    source.is_some_and(hyper::Error::is_user)
}

/// Adapts the connector to the HTTP client. It has one origin, so it ignores the URL.
#[derive(Clone, Debug)]
struct Dialer {
    connector: Connector,
    origin: Origin,
}

impl tower_service::Service<Uri> for Dialer {
    type Response = Stream;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Stream>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let Self { connector, origin } = self.clone();
        Box::pin(async move { Ok(Stream(TokioIo::new(connector.connect(&origin).await?))) })
    }
}

struct Stream(TokioIo<Box<dyn ByteStream>>);

impl Connection for Stream {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

impl Read for Stream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: ReadBufCursor<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

impl Write for Stream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.0.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write_vectored(cx, bufs)
    }
}
