//! Combines the routes of all crates.

use std::sync::Arc;

use axum::Router;
use axum::middleware::from_fn_with_state;
use isopod_api::Needs::{AdminKey, MetricsKey, Nothing, TeamKey};
use isopod_api::{
    Actions, Audit, DeclaredRoute, Document, Durability, Routes, audit::Recorder, audited, get, reads, with_fallbacks,
};
use isopod_control::http::{App, routes, unsupported_routes};
use isopod_control::{ServeConfig, open_edge};
use isopod_dashboard::{Dashboard, DashboardConfig, Front};
use tokio_util::sync::CancellationToken;

use crate::openapi::{self, ApiDocument};
use crate::parts::Parts;
use crate::{health, host, local_names, mcp};

/// Creates the router for all API requests. It has no fallbacks.
pub(crate) fn router(parts: Parts, recorder: Recorder) -> Router {
    let parts = Arc::new(parts);
    let Parts { app, agents, service, .. } = &*parts;
    let authenticator = &app.authenticator;
    let (control_routes, agent_routes, mcp_routes) = (routes(), isopod_agents::routes(), mcp::routes());
    let actions = Actions::of(control_routes.declared().chain(agent_routes.declared()).chain(mcp_routes.declared()));
    let audit = Audit { recorder, actions, durability: Durability::Queued };
    let changes = control_routes
        .into_router(authenticator, Arc::clone(app))
        .merge(agent_routes.into_router(authenticator, Arc::clone(agents)))
        .merge(parts.mcp.clone().map(mcp::router).unwrap_or_default())
        .layer(from_fn_with_state(audit, audited));
    changes
        .merge(isopod_service::router(service, authenticator))
        .merge(unsupported_routes().into_router(authenticator, Arc::clone(app)))
        .merge(server_routes().into_router(authenticator, Arc::clone(&parts)))
        .merge(openapi::routes().into_router(authenticator, ApiDocument::of(documented_routes)))
}

/// Adds the pages for browsers, which call the API and the edge like any client.
pub(crate) fn with_dashboard(
    api: Router,
    config: &DashboardConfig,
    core: (&ServeConfig, &App),
    closing: CancellationToken,
) -> Router {
    if !config.enabled {
        return with_fallbacks(api);
    }
    let (settings, app) = core;
    let front = Front { api: with_fallbacks(api.clone()), sandboxes: open_edge(settings, app) };
    let dashboard = Dashboard::new(config, front, app.domain(), closing);
    with_fallbacks(api.merge(isopod_dashboard::router(&dashboard, &app.authenticator)))
}

/// Returns all routes with their rules, sorted by path.
pub fn declared_routes() -> Vec<DeclaredRoute> {
    let mut declared: Vec<_> = routes().declared().collect();
    declared.extend(isopod_agents::routes().declared());
    declared.extend(isopod_service::routes().declared());
    declared.extend(unsupported_routes().declared());
    declared.extend(server_routes().declared());
    declared.extend(mcp::routes().declared());
    declared.extend(openapi::routes().declared());
    declared.extend(isopod_dashboard::routes().declared());
    declared.sort_by_key(|route| (route.path, route.method));
    declared
}

/// Describes all routes.
fn documented_routes() -> Document {
    Document::new()
        .with(&routes())
        .with(&isopod_agents::routes())
        .with(&isopod_service::routes())
        .with(&unsupported_routes())
        .with(&server_routes())
        .with(&mcp::routes())
        .with(&openapi::routes())
}

/// Routes about the server itself.
fn server_routes() -> Routes<Arc<Parts>> {
    Routes::new()
        .route("/health", [get(reads(Nothing), "Check whether the server is up", health::health)])
        .route(
            "/isopod/env",
            [get(
                reads(TeamKey),
                "Get the domains and addresses by which local programs find the server",
                local_names::get,
            )],
        )
        .route(
            "/isopod/host",
            [get(reads(AdminKey), "Get the load, memory and disk of the server's machine, for admins", host::get)],
        )
        .route(
            "/metrics",
            [get(
                reads(MetricsKey),
                "Get metrics for Prometheus; needs an admin key, unless the operator opened them",
                health::metrics,
            )],
        )
}
