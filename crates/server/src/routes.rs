//! Every route of a server, put together from the crates that have them.

use std::sync::Arc;

use axum::Router;
use axum::middleware::from_fn_with_state;
use isopod_control::audit::Recorder;
use isopod_control::http::Needs::{MetricsKey, Nothing, TeamKey};
use isopod_control::http::{
    Actions, Audit, DeclaredRoute, Durability, Routes, audited, get, reads, routes, unsupported_routes, with_fallbacks,
};

use crate::parts::Parts;
use crate::{health, local_names, openapi};

/// Answers every request that is for the API.
pub(crate) fn router(parts: Parts, recorder: Recorder) -> Router {
    let parts = Arc::new(parts);
    let Parts { app, agents, service, .. } = &*parts;
    let authenticator = &app.authenticator;
    let actions = Actions::of(routes().declared().chain(isopod_agents::routes().declared()));
    let audit = Audit { recorder, actions, durability: Durability::Queued };
    let changes = routes()
        .into_router(authenticator, Arc::clone(app))
        .merge(isopod_agents::routes().into_router(authenticator, Arc::clone(agents)))
        .layer(from_fn_with_state(audit, audited));
    let router = changes
        .merge(isopod_service::router(service, authenticator))
        .merge(unsupported_routes().into_router(authenticator, Arc::clone(app)))
        .merge(server_routes().into_router(authenticator, Arc::clone(&parts)));
    with_fallbacks(router)
}

/// Every route with what it needs, in the order of paths.
pub fn declared_routes() -> Vec<DeclaredRoute> {
    let mut declared: Vec<_> = routes().declared().collect();
    declared.extend(isopod_agents::routes().declared());
    declared.extend(isopod_service::routes().declared());
    declared.extend(unsupported_routes().declared());
    declared.extend(server_routes().declared());
    declared.sort_by_key(|route| (route.path, route.method));
    declared
}

/// About the server itself.
fn server_routes() -> Routes<Arc<Parts>> {
    Routes::new()
        .route("/health", [get(reads(Nothing), health::health)])
        .route("/isopod/env", [get(reads(TeamKey), local_names::get)])
        .route("/metrics", [get(reads(MetricsKey), health::metrics)])
        .route("/openapi.json", [get(reads(Nothing), openapi::document)])
        .route("/docs", [get(reads(Nothing), openapi::page)])
}
