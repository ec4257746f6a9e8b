//! One request on a connection of its own. Redirects are not followed. What the other side says is read as far as the head
//! of its answer, or as far as the caller allows.

use axum::body::Body;
use bytes::Bytes;
use http::response::Parts;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Limited};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use rustls::pki_types::{InvalidDnsNameError, ServerName};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_util::task::AbortOnDropHandle;

use super::address::{Target, TargetError};
use super::trust::Trust;

/// Why a delivery was not accepted.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PostError {
    #[error(transparent)]
    Target(#[from] TargetError),
    #[error("could not connect")]
    Connect(#[source] std::io::Error),
    #[error("the host name cannot stand in a certificate")]
    ServerName(#[source] InvalidDnsNameError),
    #[error("the other side could not prove who it is, or does not speak TLS")]
    Tls(#[source] std::io::Error),
    #[error("could not write the request")]
    Request(#[from] http::Error),
    #[error("the other side broke off")]
    Http(#[from] hyper::Error),
    #[error("the answer broke off or is too long")]
    Body(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("the answer was {0}")]
    Status(StatusCode),
    #[error("no answer in time")]
    Timeout,
}

/// Sends it to where the target says, if that may be. Nobody reads more than the head of the answer.
pub(crate) async fn request(
    target: &Target,
    trust: &Trust,
    allow_internal: bool,
    request: Request<Body>,
) -> Result<Parts, PostError> {
    let (response, _connection) = open(target, trust, allow_internal, request).await?;
    Ok(response.into_parts().0)
}

/// The same, and reads the answer, of which no more than `most` bytes may come.
pub(crate) async fn fetch(
    target: &Target,
    trust: &Trust,
    allow_internal: bool,
    request: Request<Body>,
    most: usize,
) -> Result<(StatusCode, Bytes), PostError> {
    let (response, _connection) = open(target, trust, allow_internal, request).await?;
    let status = response.status();
    let body = Limited::new(response.into_body(), most).collect().await.map_err(PostError::Body)?;
    Ok((status, body.to_bytes()))
}

/// An answer, and the connection that brings the rest of it.
type Opened = (Response<Incoming>, AbortOnDropHandle<hyper::Result<()>>);

async fn open(
    target: &Target,
    trust: &Trust,
    allow_internal: bool,
    request: Request<Body>,
) -> Result<Opened, PostError> {
    let address = target.resolve(allow_internal).await?;
    let stream = TcpStream::connect(address).await.map_err(PostError::Connect)?;
    if !target.tls {
        return send(stream, request).await;
    }
    let name = ServerName::try_from(target.host.clone()).map_err(PostError::ServerName)?;
    let stream = trust.connector().connect(name, stream).await.map_err(PostError::Tls)?;
    send(stream, request).await
}

async fn send(
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    request: Request<Body>,
) -> Result<Opened, PostError> {
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    // In a task of its own: an answer and the end of the connection may come in one breath, and the answer counts.
    let connection = AbortOnDropHandle::new(tokio::spawn(connection));
    let response = sender.send_request(request).await?;
    Ok((response, connection))
}
