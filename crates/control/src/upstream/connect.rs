//! Opens one connection into a sandbox, through the node.

use axum::body::Body;
use hyper::client::conn::http1::{Builder, SendRequest};
use hyper_util::rt::TokioIo;
use isopod_wire::node::{DialError, Incarnation, NodeApi, Stream, Target};
use tokio_util::sync::CancellationToken;

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConnectError {
    #[error(transparent)]
    Dial(#[from] DialError),
    #[error("what listens there does not speak HTTP")]
    Handshake(#[from] hyper::Error),
}

/// Opens a connection. It ends with the sandbox's run, or when nobody holds its sender any more.
pub(crate) async fn connect(
    node: &dyn NodeApi,
    incarnation: &Incarnation,
    target: Target,
    gate: &CancellationToken,
) -> Result<SendRequest<Body>, ConnectError> {
    let stream = node.dial(incarnation, target).await?;
    Ok(speak(stream, gate).await?)
}

/// Speaks HTTP on a connection, which ends with the sandbox's run, or when nobody holds its sender any more.
pub(crate) async fn speak(stream: Box<dyn Stream>, gate: &CancellationToken) -> hyper::Result<SendRequest<Body>> {
    // Programs that are particular about the names of headers get them as the client wrote them, and ours as most write
    // them. The same holds for what comes back.
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
