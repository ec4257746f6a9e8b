//! `GET /api/v1/health`.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse as _, Response};
use http::StatusCode;
use serde_json::json;

use crate::Service;

pub(super) async fn health(State(service): State<Arc<Service>>) -> Response {
    match service.recorder.is_ready() {
        Ok(()) => Json(json!({ "status": "ok" })).into_response(),
        Err(_) => (StatusCode::SERVICE_UNAVAILABLE, Json(json!({ "status": "audit_unavailable" }))).into_response(),
    }
}
