//! The routes of the dashboard. None of them is for programs, so they are not in the API's document.

use std::sync::Arc;

use axum::Router;
use axum::middleware::{from_fn, from_fn_with_state};
use isopod_api::Needs::{Nothing, Session};
use isopod_api::{Authenticator, Routes, any, page, reads, refuses, submit};

use crate::pages::{files, logs, overview, ports, processes, sandbox, sandboxes, terminal};
use crate::{Dashboard, assets, guard, live, root, sign_in};

/// All routes, for the table of permissions.
pub fn routes() -> Routes<Arc<Dashboard>> {
    front_door().merge(open_routes()).merge(session_routes())
}

/// Builds the router, with the guards.
pub fn router(dashboard: &Arc<Dashboard>, authenticator: &Arc<Authenticator>) -> Router {
    let state = || Arc::clone(dashboard);
    let guarded = session_routes().into_router(authenticator, state());
    let open = open_routes().into_router(authenticator, state());
    let front = front_door().into_router(authenticator, state());
    front
        .merge(open.layer(from_fn(guard::without_session)))
        .merge(guarded.layer(from_fn_with_state(state(), guard::with_session)))
}

/// The only route outside `/dashboard`.
fn front_door() -> Routes<Arc<Dashboard>> {
    Routes::new().route("/", [any(reads(Nothing), root::root)])
}

fn open_routes() -> Routes<Arc<Dashboard>> {
    Routes::new()
        .route("/dashboard/assets/{version}/{*name}", [page(reads(Nothing), assets::get)])
        .route("/dashboard/sign-in", [page(reads(Nothing), sign_in::show), submit(refuses(Nothing), sign_in::submit)])
}

/// Pages, and what they send. Whatever changes something calls a route of the API, which is audited there.
fn session_routes() -> Routes<Arc<Dashboard>> {
    Routes::new()
        .route("/dashboard/sign-out", [submit(refuses(Session), sign_in::sign_out)])
        .route("/dashboard/live/sandboxes", [page(reads(Session), live::sandboxes)])
        .merge(overview::routes())
        .merge(sandboxes::routes())
        .merge(sandbox::routes())
        .merge(terminal::routes())
        .merge(files::routes())
        .merge(logs::routes())
        .merge(processes::routes())
        .merge(ports::routes())
}
