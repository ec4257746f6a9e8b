//! Opens connections into a sandbox through the node.

use axum::body::Body;
use hyper::client::conn::http1::{Builder, SendRequest};
use hyper_util::rt::TokioIo;
use isopod_wire::node::{DialError, Incarnation, NodeApi, Stream, Target};
use tokio_util::sync::CancellationToken;

/// Why a connection failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConnectError {
    #[error(transparent)]
    Dial(#[from] DialError),
    #[error("the service does not speak HTTP")]
    Handshake(#[from] hyper::Error),
}

/// Opens a connection. It ends when the sandbox stops, or when its sender is dropped.
pub(crate) async fn connect(
    node: &dyn NodeApi,
    incarnation: &Incarnation,
    target: Target,
    gate: &CancellationToken,
) -> Result<SendRequest<Body>, ConnectError> {
    let stream = node.dial(incarnation, target).await?;
    Ok(start_http(stream, gate).await?)
}

/// Starts HTTP on a connection. It ends when the sandbox stops, or when its sender is dropped.
pub(crate) async fn start_http(stream: Box<dyn Stream>, gate: &CancellationToken) -> hyper::Result<SendRequest<Body>> {
    // Some programs are particular about the case of header names. They get them as the client wrote them, and our own
    // in the usual case. The same holds for responses.
    let mut builder = Builder::new();
    builder.preserve_header_case(true).title_case_headers(true);
    let (sender, connection) = builder.handshake(TokioIo::new(stream)).await?;
    let gate = gate.clone();
    tokio::spawn(async move {
        tokio::select! {
            () = gate.cancelled() => {}
            ended = connection.with_upgrades() => {
                if let Err(error) = ended {
                    tracing::debug!(error = isopod_wire::error_chain(&error), "a connection into a sandbox broke");
                }
            }
        }
    });
    Ok(sender)
}
