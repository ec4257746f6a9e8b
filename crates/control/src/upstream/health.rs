//! Whether a sandbox's guest answers.

use axum::body::Body;
use http::Request;
use isopod_wire::node::{Incarnation, NodeApi, Target};
use tokio_util::sync::CancellationToken;

use super::connect::connect;

/// Asks the guest. The caller sets the timeout.
pub(crate) async fn guest_is_healthy(node: &dyn NodeApi, incarnation: &Incarnation) -> bool {
    let gate = CancellationToken::new();
    let _closed_at_the_end = gate.clone().drop_guard();
    let Ok(mut sender) = connect(node, incarnation, Target::Guest, &gate).await else { return false };
    let mut request = Request::new(Body::empty());
    *request.uri_mut() = http::Uri::from_static("/health");
    request.headers_mut().insert(http::header::HOST, http::HeaderValue::from_static("localhost"));
    matches!(sender.send_request(request).await, Ok(response) if response.status().is_success())
}
