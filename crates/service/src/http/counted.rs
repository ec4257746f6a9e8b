//! Counts the service's requests by action and outcome, and ensures that every refusal has a stable code.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{MatchedPath, Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use isopod_api::{Actions, ApiError, audit::Subject};

use crate::Service;

/// The action of routes that declare none.
const UNDECLARED: &str = "other";

pub(super) async fn counted(
    State((service, actions)): State<(Arc<Service>, Actions)>,
    request: Request,
    next: Next,
) -> Response {
    let pattern = request.extensions().get::<MatchedPath>().map(MatchedPath::as_str).unwrap_or_default();
    let action = actions.find(request.method(), pattern).unwrap_or(UNDECLARED);
    let (response, code) = with_code(next.run(request).await);
    service.metrics.operation(action, code.unwrap_or("ok"));
    response
}

/// The response and its error code. There is no code if the request succeeded.
fn with_code(mut response: Response) -> (Response, Option<&'static str>) {
    match response.extensions_mut().remove::<ApiError>() {
        Some(error) => {
            let error = error.with_default_code();
            let code = error.code_or_default();
            let mut renewed: Response<Body> = error.into_response();
            if let Some(subject) = response.extensions_mut().remove::<Subject>() {
                renewed.extensions_mut().insert(subject);
            }
            (renewed, Some(code))
        }
        None if response.status().is_client_error() => (response, Some("refused")),
        None => (response, None),
    }
}
