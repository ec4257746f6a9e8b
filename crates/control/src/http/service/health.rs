//! `GET /api/v1/health` (S2.22) and the service's part of `/metrics`.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse as _, Response};
use http::StatusCode;
use serde_json::json;

use crate::app::App;

pub(super) async fn health(State(app): State<Arc<App>>) -> Response {
    match app.service.recorder.is_ready() {
        Ok(()) => Json(json!({ "status": "ok" })).into_response(),
        Err(_) => (StatusCode::SERVICE_UNAVAILABLE, Json(json!({ "status": "audit_unavailable" }))).into_response(),
    }
}

/// What a store that fails leaves out is seen by its absence.
pub(in crate::http) async fn render_metrics(app: &App) -> String {
    app.service.render_metrics().await.unwrap_or_else(|error| {
        tracing::warn!(error = crate::chain(&error), "the service's metrics were left out");
        String::new()
    })
}
