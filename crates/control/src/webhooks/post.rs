//! One signed POST. Redirects are not followed: they could lead anywhere.

use axum::body::Body;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use http::Request;
use hyper_util::rt::TokioIo;
use sha2::{Digest as _, Sha256};
use tokio::net::TcpStream;

use super::address::{Target, TargetError};
use crate::store::Delivery;

/// Why a delivery was not accepted.
#[derive(Debug, thiserror::Error)]
pub(super) enum PostError {
    #[error(transparent)]
    Target(#[from] TargetError),
    #[error("could not connect")]
    Connect(#[source] std::io::Error),
    #[error("could not write the request")]
    Request(#[from] http::Error),
    #[error("the other side broke off")]
    Http(#[from] hyper::Error),
    #[error("the answer was {0}")]
    Status(http::StatusCode),
    #[error("no answer in time")]
    Timeout,
}

pub(super) async fn post(delivery: &Delivery, allow_internal: bool) -> Result<(), PostError> {
    let target = Target::parse(&delivery.url)?;
    let address = target.resolve(allow_internal).await?;
    let stream = TcpStream::connect(address).await.map_err(PostError::Connect)?;
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
