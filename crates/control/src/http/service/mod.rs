//! `/api/v1`: the sandbox service over HTTP. Handlers read a request into checked values, ask the service, and show what it
//! says. Around all of them stands the audit: no answer leaves before its line is written.

mod agents;
mod audit;
mod audited;
mod commands;
mod error;
mod execute;
mod execute_stream;
mod files;
mod git;
mod health;
mod names;
mod sandbox_create;
mod sandboxes;
mod sse;
mod start_task;
mod tasks;
mod teams;
mod usage;
mod views;

use std::sync::Arc;

use axum::Router;
use axum::middleware::from_fn_with_state;
use axum::routing::{get, post, put};

use crate::app::App;
pub(super) use audited::Subject;
pub(super) use health::render_metrics;

/// Every route of the service.
pub(super) fn routes(app: &Arc<App>) -> Router<Arc<App>> {
    let audited = sandbox_routes().merge(task_routes()).merge(record_routes());
    let audited = audited.layer(from_fn_with_state(Arc::clone(app), audited::audited));
    // Whether the server lives is nobody's secret and nobody's deed.
    audited.route("/api/v1/health", get(health::health))
}

fn sandbox_routes() -> Router<Arc<App>> {
    Router::new()
        .route("/api/v1/sandboxes", post(sandbox_create::create).get(sandboxes::list))
        .route("/api/v1/sandboxes/{id}", get(sandboxes::get).delete(sandboxes::destroy))
        .route("/api/v1/sandboxes/{id}/execute", post(execute::execute))
        .route("/api/v1/sandboxes/{id}/execute/stream", post(execute_stream::execute_stream))
        .route("/api/v1/sandboxes/{id}/files", put(files::write).get(files::read))
        .route("/api/v1/sandboxes/{id}/pause", post(sandboxes::pause))
        .route("/api/v1/sandboxes/{id}/resume", post(sandboxes::resume))
        .route("/api/v1/git/clone", post(git::clone))
        .route("/api/v1/git/branch", post(git::branch))
        .route("/api/v1/git/commit", post(git::commit))
        .route("/api/v1/git/push", post(git::push))
        .route("/api/v1/git/{id}/history", get(git::history))
}

fn task_routes() -> Router<Arc<App>> {
    Router::new()
        .route("/api/v1/agents", get(agents::list).post(agents::create))
        .route("/api/v1/agents/{id}", get(agents::get).delete(agents::remove))
        .route("/api/v1/agents/{id}/start-task", post(start_task::start_task))
        .route("/api/v1/tasks", get(tasks::list).post(tasks::create))
        .route("/api/v1/tasks/{id}", get(tasks::get).patch(tasks::change))
        .route("/api/v1/tasks/{id}/finish", post(tasks::finish))
        .route("/api/v1/tasks/{id}/fail", post(tasks::fail))
        .route("/api/v1/tasks/{id}/cancel", post(tasks::cancel))
}

fn record_routes() -> Router<Arc<App>> {
    Router::new()
        .route("/api/v1/commands", get(commands::list))
        .route("/api/v1/commands/{id}", get(commands::get))
        .route("/api/v1/audit", get(audit::list))
        .route("/api/v1/audit/export", get(audit::export))
        .route("/api/v1/audit/verify", get(audit::verify))
        .route("/api/v1/usage", get(usage::report))
        .route("/api/v1/sse", get(sse::follow))
        .route("/api/v1/teams", get(teams::list))
        .route("/api/v1/teams/{id}", put(teams::ensure))
        .route("/api/v1/teams/{id}/members/{member}", put(teams::add_member).delete(teams::remove_member))
}
