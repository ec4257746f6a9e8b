//! `GET /health` and `GET /metrics`, for monitoring.

use std::sync::Arc;

use axum::extract::State;
use isopod_api::{Empty, MetricsText, NoContent};
use isopod_control::telemetry::{render, render_database, render_pools};

use crate::parts::Parts;

pub(super) async fn health() -> NoContent {
    Empty
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
