//! `GET /health` and `GET /metrics`, for monitoring.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use isopod_api::MetricsText;
use isopod_control::telemetry::{render, render_database, render_pools};
use serde::Serialize;
use utoipa::ToSchema;

use crate::parts::Parts;

/// The server answers.
#[derive(Serialize, ToSchema)]
#[schema(as = ServerHealth)]
pub(super) struct Health {
    status: &'static str,
}

pub(super) async fn health() -> Json<Health> {
    Json(Health { status: "ok" })
}

pub(super) async fn metrics(State(parts): State<Arc<Parts>>) -> MetricsText {
    let states: Vec<_> = parts.app.fleet.all().iter().filter_map(|sandbox| sandbox.view().row.state.shown()).collect();
    let count = |wanted: &str| states.iter().filter(|state| **state == wanted).count();
    let live = [("running", count("running")), ("paused", count("paused"))];
    let mut text = render(&parts.app.fleet.counters, &live, parts.app.fleet.node.free_memory().await.0);
    render_pools(&mut text, &parts.app.fleet.node.pool_status().await);
    render_database(&mut text, parts.app.fleet.store.connections());
    text += &parts.service.metrics_text().await;
    MetricsText(text)
}
