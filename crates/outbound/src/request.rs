//! Sends one request on a connection of its own. Redirects are not followed. The response is read up to the end of its
//! head, or as far as the caller allows.

use crate::Policy;
use bytes::Bytes;
use http::response::Parts;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Limited};
use hyper::body::{Body, Incoming};
use hyper_util::rt::TokioIo;
use rustls::pki_types::{InvalidDnsNameError, ServerName};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_util::task::AbortOnDropHandle;

use crate::target::{Target, TargetError};
use crate::trust::Trust;

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
    #[error("the response was cut off or is too long")]
    Body(#[source] BoxError),
    #[error("the server responded with {0}")]
    Status(StatusCode),
    #[error("the server did not respond in time")]
    Timeout,
}

/// Sends the request to the target, if the policy allows it. Reads only the head of the response.
pub async fn request<B: Outgoing>(
    target: &Target,
    trust: &Trust,
    policy: &Policy,
    request: Request<B>,
) -> Result<Parts, RequestError> {
    let (response, _connection) = open(target, trust, policy, request).await?;
    Ok(response.into_parts().0)
}

/// Like [`request`], but also reads the body of the response. More than `most` bytes are an error.
pub async fn fetch<B: Outgoing>(
    target: &Target,
    trust: &Trust,
    policy: &Policy,
    request: Request<B>,
    most: usize,
) -> Result<(StatusCode, Bytes), RequestError> {
    let (response, _connection) = open(target, trust, policy, request).await?;
    let status = response.status();
    let body = Limited::new(response.into_body(), most).collect().await.map_err(RequestError::Body)?;
    Ok((status, body.to_bytes()))
}

/// A body that can be sent.
pub trait Outgoing: Body<Data: Send, Error: Into<BoxError>> + Send + 'static {}

impl<B: Body<Data: Send, Error: Into<BoxError>> + Send + 'static> Outgoing for B {}

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// A response, and the connection that delivers the rest of it.
type Opened = (Response<Incoming>, AbortOnDropHandle<hyper::Result<()>>);

async fn open<B: Outgoing>(
    target: &Target,
    trust: &Trust,
    policy: &Policy,
    request: Request<B>,
) -> Result<Opened, RequestError> {
    let address = target.resolve(policy).await?;
    let stream = TcpStream::connect(address.as_slice()).await.map_err(RequestError::Connect)?;
    if !target.tls {
        return send(stream, request).await;
    }
    let name = ServerName::try_from(target.host.clone()).map_err(RequestError::ServerName)?;
    let stream = trust.connector().connect(name, stream).await.map_err(RequestError::Tls)?;
    send(stream, request).await
}

async fn send<B: Outgoing>(
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    request: Request<B>,
) -> Result<Opened, RequestError> {
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    // A task of its own drives the connection. If the response and the end of the connection arrive together, the
    // response counts.
    let connection = AbortOnDropHandle::new(tokio::spawn(connection));
    let response = sender.send_request(request).await?;
    Ok((response, connection))
}
