//! One request on a connection of its own. Redirects are not followed. What the other side says is read as far as the head
//! of its answer, or as far as the caller allows.

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
    #[error("the host name cannot stand in a certificate")]
    ServerName(#[source] InvalidDnsNameError),
    #[error("the other side could not prove who it is, or does not speak TLS")]
    Tls(#[source] std::io::Error),
    #[error("could not write the request")]
    Request(#[from] http::Error),
    #[error("the other side broke off")]
    Http(#[from] hyper::Error),
    #[error("the answer broke off or is too long")]
    Body(#[source] BoxError),
    #[error("the answer was {0}")]
    Status(StatusCode),
    #[error("no answer in time")]
    Timeout,
}

/// Sends it to where the target says, if that may be. Nobody reads more than the head of the answer.
pub async fn request<B: Outgoing>(
    target: &Target,
    trust: &Trust,
    policy: &Policy,
    request: Request<B>,
) -> Result<Parts, RequestError> {
    let (response, _connection) = open(target, trust, policy, request).await?;
    Ok(response.into_parts().0)
}

/// The same, and reads the answer, of which no more than `most` bytes may come.
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

/// An answer, and the connection that brings the rest of it.
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
    // In a task of its own: an answer and the end of the connection may come in one breath, and the answer counts.
    let connection = AbortOnDropHandle::new(tokio::spawn(connection));
    let response = sender.send_request(request).await?;
    Ok((response, connection))
}
