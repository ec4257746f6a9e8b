//! Sends one request on a connection of its own. Redirects are not followed. The response is read up to the end of its
//! head, or as far as the caller allows.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::response::Parts;
use http::{Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper_util::rt::TokioIo;
use rustls::pki_types::{InvalidDnsNameError, ServerName};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::task::AbortOnDropHandle;

use crate::target::{Target, TargetError};
use crate::trust::Trust;
use crate::{OutboundError, Policy};

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    #[error(transparent)]
    Target(#[from] TargetError),
    #[error("could not connect")]
    Connect(#[source] std::io::Error),
    #[error("the host name is not valid in a certificate")]
    ServerName(#[source] InvalidDnsNameError),
    #[error("the server's certificate is not trusted, or the server does not speak TLS")]
    Tls(#[source] std::io::Error),
    #[error("could not build the request")]
    Request(#[from] http::Error),
    #[error("the connection failed before the response was complete")]
    Http(#[from] hyper::Error),
    #[error(transparent)]
    Pooled(#[from] hyper_util::client::legacy::Error),
    #[error("the response was cut off")]
    Body(#[source] BoxError),
    #[error("the response is longer than {0} bytes")]
    TooLong(usize),
    #[error("the server responded with {0}")]
    Status(StatusCode),
    #[error("the server did not respond in time")]
    Timeout,
}

impl RequestError {
    /// Whether the policy refused the host, because it is internal. Then nothing was sent.
    pub fn is_internal(&self) -> bool {
        matches!(self, Self::Target(TargetError::Outbound(OutboundError::Internal { .. })))
    }
}

/// Sends the request to the target, if the policy allows it. Reads only the head of the response.
pub async fn request<B: Outgoing>(
    target: &Target,
    trust: &Trust,
    policy: &Policy,
    request: Request<B>,
) -> Result<Parts, RequestError> {
    let response = connect(target, trust, policy).await?.send(request).await?;
    Ok(response.into_parts().0)
}

/// Like [`request`], but also reads the body of the response. More than `limit` bytes are an error.
pub async fn fetch<B: Outgoing>(
    target: &Target,
    trust: &Trust,
    policy: &Policy,
    request: Request<B>,
    limit: usize,
) -> Result<(StatusCode, Bytes), RequestError> {
    connect(target, trust, policy).await?.fetch(request, limit).await
}

/// Connects to the target, if the policy allows it. For callers that give the connection and the response a deadline
/// each, or that read the body piece by piece; otherwise, [`fetch`] is simpler.
pub async fn connect(target: &Target, trust: &Trust, policy: &Policy) -> Result<Connection, RequestError> {
    let stream = policy.connect(&target.host, target.port).await.map_err(|error| match error {
        OutboundError::Connect { source, .. } => RequestError::Connect(source),
        other => RequestError::Target(other.into()),
    })?;
    if !target.tls {
        return Ok(Connection { stream: Box::new(stream) });
    }
    let name = ServerName::try_from(target.host.clone()).map_err(RequestError::ServerName)?;
    let stream = trust.connector().connect(name, stream).await.map_err(RequestError::Tls)?;
    Ok(Connection { stream: Box::new(stream) })
}

/// Reads a whole body. More than `limit` bytes are an error, and the rest is not read.
pub async fn collect(
    body: impl Body<Data = Bytes, Error: Into<BoxError>>,
    limit: usize,
) -> Result<Bytes, RequestError> {
    match Limited::new(body, limit).collect().await {
        Ok(body) => Ok(body.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => Err(RequestError::TooLong(limit)),
        Err(error) => Err(RequestError::Body(error)),
    }
}

/// A connection on which nothing was sent yet.
pub struct Connection {
    stream: Box<dyn Stream>,
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Connection(…)")
    }
}

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

impl Connection {
    /// Sends the request and reads the head of the response.
    pub async fn send<B: Outgoing>(self, request: Request<B>) -> Result<Response<ResponseBody>, RequestError> {
        self.start(request.map(|body| UnsyncBoxBody::new(body.map_err(Into::into)))).await
    }

    /// For one type of bodies, and not `async`, so that the client is compiled here. The body of an `async fn` is compiled
    /// in every crate that polls it.
    fn start(self, request: Request<UnsyncBoxBody<Bytes, BoxError>>) -> Started {
        Box::pin(async move {
            let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(self.stream)).await?;
            // A task of its own drives the connection. If the response and the end of the connection arrive together, the
            // response counts.
            let connection = AbortOnDropHandle::new(tokio::spawn(connection));
            let response = sender.send_request(request).await?;
            Ok(response.map(|incoming| ResponseBody { incoming, _connection: connection }))
        })
    }

    /// Like [`send`](Self::send), but also reads the body of the response. More than `limit` bytes are an error.
    pub async fn fetch<B: Outgoing>(
        self,
        request: Request<B>,
        limit: usize,
    ) -> Result<(StatusCode, Bytes), RequestError> {
        let response = self.send(request).await?;
        let status = response.status();
        Ok((status, collect(response.into_body(), limit).await?))
    }
}

/// The body of a response, with the connection that delivers it. Dropping the body closes the connection.
#[derive(Debug)]
pub struct ResponseBody {
    incoming: Incoming,
    _connection: AbortOnDropHandle<hyper::Result<()>>,
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        Pin::new(&mut self.incoming).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.size_hint()
    }
}

/// A body that can be sent.
pub trait Outgoing: Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static {}

impl<B: Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static> Outgoing for B {}

type Started = Pin<Box<dyn Future<Output = Result<Response<ResponseBody>, RequestError>> + Send>>;

type BoxError = Box<dyn std::error::Error + Send + Sync>;

#[cfg(test)]
mod tests {
    use http_body_util::Empty;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;
    use tokio::task::JoinHandle;

    use super::*;

    /// A server on loopback that sends this head to one client, and then zeros until the client closes the connection.
    async fn endless(head: &'static str) -> (Target, JoinHandle<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let target = Target::parse(&format!("http://{}/", listener.local_addr().unwrap())).unwrap();
        let serving = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let _ = stream.read(&mut [0; 4096]).await.unwrap();
            stream.write_all(head.as_bytes()).await.unwrap();
            while stream.write_all(&[0; 1 << 16]).await.is_ok() {}
        });
        (target, serving)
    }

    const UNTIL_CLOSED: &str = "HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n";

    fn get(target: &Target) -> Request<Empty<Bytes>> {
        Request::get(&target.path).header("host", &target.authority).body(Empty::new()).unwrap()
    }

    #[tokio::test]
    async fn a_body_without_end_is_cut_and_its_connection_closed() {
        let (target, serving) = endless(UNTIL_CLOSED).await;
        let cut = fetch(&target, &Trust::system(), &Policy::open(), get(&target), 100_000).await;
        assert!(matches!(cut, Err(RequestError::TooLong(100_000))), "{cut:?}");
        serving.await.unwrap();
    }

    #[tokio::test]
    async fn dropping_a_response_closes_its_connection() {
        let (target, serving) = endless(UNTIL_CLOSED).await;
        let connection = connect(&target, &Trust::system(), &Policy::open()).await.unwrap();
        let mut response = connection.send(get(&target)).await.unwrap();
        assert!(response.body_mut().frame().await.unwrap().is_ok());
        assert!(!serving.is_finished());
        drop(response);
        serving.await.unwrap();
    }

    #[tokio::test]
    async fn an_internal_target_is_told_from_one_that_cannot_be_reached() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let target = Target::parse(&format!("http://{}/", listener.local_addr().unwrap())).unwrap();
        drop(listener);
        let refused = connect(&target, &Trust::system(), &Policy::default()).await.unwrap_err();
        assert!(refused.is_internal(), "{refused:?}");
        let unreachable = connect(&target, &Trust::system(), &Policy::open()).await.unwrap_err();
        assert!(matches!(unreachable, RequestError::Connect(_)) && !unreachable.is_internal(), "{unreachable:?}");
    }
}
