//! `GET /health` and `GET /metrics`: for machines that watch the server.

use std::sync::Arc;

use axum::extract::State;
use axum::response::IntoResponse;
use http::{StatusCode, header};

use super::service;
use crate::app::App;
use crate::telemetry::{render, render_database, render_stock};

pub(super) async fn health() -> StatusCode {
    StatusCode::NO_CONTENT
}

pub(super) async fn metrics(State(app): State<Arc<App>>) -> impl IntoResponse {
    let states: Vec<_> = app.fleet.all().iter().filter_map(|sandbox| sandbox.view().row.state.shown()).collect();
    let count = |wanted: &str| states.iter().filter(|state| **state == wanted).count();
    let live = [("running", count("running")), ("paused", count("paused"))];
    let mut text = render(&app.fleet.counters, &live, app.fleet.node.free_memory().await.0);
    render_stock(&mut text, &app.fleet.node.stock().await);
    render_database(&mut text, app.fleet.store.connections());
    app.service.resilient.metrics().render(&mut text);
    text += &service::render_metrics(&app).await;
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text)
}
