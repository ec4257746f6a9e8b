//! Every route of a server, put together from the crates that have them.

use std::sync::Arc;

use axum::Router;
use axum::middleware::from_fn_with_state;
use isopod_api::Needs::{MetricsKey, Nothing, TeamKey};
use isopod_api::{
    Actions, Audit, DeclaredRoute, Document, Durability, Routes, audit::Recorder, audited, get, reads, with_fallbacks,
};
use isopod_control::http::{routes, unsupported_routes};

use crate::openapi::{self, ApiDocument};
use crate::parts::Parts;
use crate::{health, local_names};

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
        .merge(server_routes().into_router(authenticator, Arc::clone(&parts)))
        .merge(openapi::routes().into_router(authenticator, ApiDocument::of(documented_routes)));
    with_fallbacks(router)
}

/// Every route with what it needs, in the order of paths.
pub fn declared_routes() -> Vec<DeclaredRoute> {
    let mut declared: Vec<_> = routes().declared().collect();
    declared.extend(isopod_agents::routes().declared());
    declared.extend(isopod_service::routes().declared());
    declared.extend(unsupported_routes().declared());
    declared.extend(server_routes().declared());
    declared.extend(openapi::routes().declared());
    declared.sort_by_key(|route| (route.path, route.method));
    declared
}

/// What all routes take and return.
fn documented_routes() -> Document {
    Document::new()
        .with(&routes())
        .with(&isopod_agents::routes())
        .with(&isopod_service::routes())
        .with(&unsupported_routes())
        .with(&server_routes())
        .with(&openapi::routes())
}

/// About the server itself.
fn server_routes() -> Routes<Arc<Parts>> {
    Routes::new()
        .route("/health", [get(reads(Nothing), "Whether the server answers", health::health)])
        .route(
            "/isopod/env",
            [get(reads(TeamKey), "How programs of this machine find the server under other domains", local_names::get)],
        )
        .route(
            "/metrics",
            [get(
                reads(MetricsKey),
                "Counts for Prometheus, for an admin key; without a key where the server opened them",
                health::metrics,
            )],
        )
}
