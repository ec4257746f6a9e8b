//! `GET /nodes`: the servers that share the database, for admins. A server with a database of its own lists itself.

use std::sync::Arc;

use axum::extract::State;
use isopod_api::{ApiError, Listing};
use isopod_store::clock::Timestamp;
use isopod_store::{ServerRow, StoreError};
use serde::Serialize;
use utoipa::ToSchema;

use super::app::App;
use crate::membership::VERSION;

/// A server and its sandboxes.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Node)]
pub(super) struct NodeView {
    id: String,
    name: String,
    version: String,
    /// `ready`, or `unhealthy` if its lease has run out.
    status: &'static str,
    last_seen_at: Timestamp,
    /// Sandboxes that run, are being created or are being removed.
    sandbox_count: u32,
    paused_sandbox_count: u32,
    /// Whether it is the server that answers.
    is_answering: bool,
}

pub(super) async fn list(State(app): State<Arc<App>>) -> Result<Listing<NodeView>, ApiError> {
    let store = &app.fleet.store;
    let own = store.server_identity().await?;
    let mut servers = store.list_servers().await?;
    if servers.is_empty() {
        servers.push(this_server(&app, own.clone()).await?);
    }
    Ok(Listing(servers.into_iter().map(|server| view(server, &own)).collect()))
}

async fn this_server(app: &App, id: String) -> Result<ServerRow, StoreError> {
    Ok(ServerRow {
        id,
        name: app.settings.node_name.clone(),
        version: VERSION.to_owned(),
        seen_at: Timestamp::now(),
        is_reachable: true,
        sandboxes: app.fleet.store.count_own_sandboxes().await?,
    })
}

fn view(server: ServerRow, own: &str) -> NodeView {
    // This server answers, whatever the database says of its lease.
    let is_answering = server.id == own;
    NodeView {
        status: if is_answering || server.is_reachable { "ready" } else { "unhealthy" },
        id: server.id,
        name: server.name,
        version: server.version,
        last_seen_at: server.seen_at,
        sandbox_count: server.sandboxes.running,
        paused_sandbox_count: server.sandboxes.paused,
        is_answering,
    }
}
