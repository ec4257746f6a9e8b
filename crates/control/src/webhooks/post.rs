//! One signed POST. Redirects are not followed: they could lead anywhere.

use axum::body::Body;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use http::Request;
use hyper_util::rt::TokioIo;
use rustls::pki_types::{InvalidDnsNameError, ServerName};
use sha2::{Digest as _, Sha256};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

use super::address::{Target, TargetError};
use super::trust::Trust;
use crate::config::ServeConfig;
use crate::store::Delivery;

/// Why a delivery was not accepted.
#[derive(Debug, thiserror::Error)]
pub(super) enum PostError {
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
    #[error("the answer was {0}")]
    Status(http::StatusCode),
    #[error("no answer in time")]
    Timeout,
}

/// Sends deliveries.
pub(crate) struct Poster {
    allow_internal: bool,
    trust: Trust,
}

impl Poster {
    pub(crate) fn new(config: &ServeConfig) -> Self {
        Self { allow_internal: config.allow_internal_webhooks, trust: Trust::new(config.webhook_authorities.clone()) }
    }

    pub(super) async fn post(&self, delivery: &Delivery) -> Result<(), PostError> {
        let target = Target::parse(&delivery.url)?;
        let address = target.resolve(self.allow_internal).await?;
        let stream = TcpStream::connect(address).await.map_err(PostError::Connect)?;
        if !target.tls {
            return send(stream, &target, delivery).await;
        }
        let name = ServerName::try_from(target.host.clone()).map_err(PostError::ServerName)?;
        let stream = self.trust.connector().connect(name, stream).await.map_err(PostError::Tls)?;
        send(stream, &target, delivery).await
    }
}

async fn send(
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    target: &Target,
    delivery: &Delivery,
) -> Result<(), PostError> {
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    let request = Request::post(&target.path)
        .header("host", &target.authority)
        .header("content-type", "application/json")
        .header("user-agent", concat!("isopod/", env!("CARGO_PKG_VERSION")))
        .header("e2b-webhook-id", &delivery.webhook)
        .header("e2b-delivery-id", &delivery.id)
        .header("e2b-signature-version", "v1")
        .header("e2b-signature", signature(&delivery.secret.0, &delivery.body))
        .body(Body::from(delivery.body.clone()))?;
    let response = tokio::select! {
        response = sender.send_request(request) => response?,
        // Ends first only without an answer; the request then says the same.
        ended = connection => return Err(ended.map_or_else(PostError::Http, |()| PostError::Timeout)),
    };
    if response.status().is_success() { Ok(()) } else { Err(PostError::Status(response.status())) }
}

fn signature(secret: &str, body: &str) -> String {
    let mut hash = Sha256::new();
    hash.update(secret);
    hash.update(body);
    STANDARD_NO_PAD.encode(hash.finalize())
}
