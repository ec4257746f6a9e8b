//! `/api/v1`: the sandbox service over HTTP. Handlers parse and check a request, call the service, and format the
//! result. The audit wraps all of them: no response is sent before its line is written.

mod agents;
mod audit;
mod commands;
mod counted;
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
use isopod_control::http::Needs::{AdminKey, AgentKey, Nothing, TeamKey};
use isopod_control::http::{
    Actions, Audit, Authenticator, Durability, Routes, audited, changes, delete, get, patch, post, put, reads,
};

use crate::Service;

/// The service's API, with its audit.
pub fn router(service: &Arc<Service>, authenticator: &Arc<Authenticator>) -> Router {
    let actions = Actions::of(audited_routes().declared());
    let counted = from_fn_with_state((Arc::clone(service), actions.clone()), counted::counted);
    let audit = Audit { recorder: service.recorder.clone(), actions, durability: Durability::Written };
    let audited_router = audited_routes()
        .into_router(authenticator, Arc::clone(service))
        .layer(counted)
        .layer(from_fn_with_state(audit, audited));
    audited_router.merge(open_routes().into_router(authenticator, Arc::clone(service)))
}

/// Every route of the service.
pub fn routes() -> Routes<Arc<Service>> {
    audited_routes().merge(open_routes())
}

fn audited_routes() -> Routes<Arc<Service>> {
    sandbox_routes().merge(task_routes()).merge(record_routes())
}

/// The health route needs no key and is not audited.
fn open_routes() -> Routes<Arc<Service>> {
    Routes::new().route("/api/v1/health", [get(reads(Nothing), health::health)])
}

fn sandbox_routes() -> Routes<Arc<Service>> {
    Routes::new()
        .route(
            "/api/v1/sandboxes",
            [
                post(changes(AgentKey, "sandbox.create"), sandbox_create::create),
                get(reads(AgentKey).audited_as("sandbox.list"), sandboxes::list),
            ],
        )
        .route(
            "/api/v1/sandboxes/{id}",
            [
                get(reads(AgentKey).audited_as("sandbox.get"), sandboxes::get),
                delete(changes(AgentKey, "sandbox.destroy"), sandboxes::destroy),
            ],
        )
        .route("/api/v1/sandboxes/{id}/execute", [post(changes(AgentKey, "sandbox.execute"), execute::execute)])
        .route(
            "/api/v1/sandboxes/{id}/execute/stream",
            [post(changes(AgentKey, "sandbox.execute_stream"), execute_stream::execute_stream)],
        )
        .route(
            "/api/v1/sandboxes/{id}/files",
            [
                put(changes(AgentKey, "file.write"), files::write),
                get(reads(AgentKey).audited_as("file.read"), files::read),
            ],
        )
        .route("/api/v1/sandboxes/{id}/pause", [post(changes(AgentKey, "sandbox.pause"), sandboxes::pause)])
        .route("/api/v1/sandboxes/{id}/resume", [post(changes(AgentKey, "sandbox.resume"), sandboxes::resume)])
        .route("/api/v1/git/clone", [post(changes(AgentKey, "git.clone"), git::clone)])
        .route("/api/v1/git/branch", [post(changes(AgentKey, "git.branch"), git::branch)])
        .route("/api/v1/git/commit", [post(changes(AgentKey, "git.commit"), git::commit)])
        .route("/api/v1/git/push", [post(changes(AgentKey, "git.push"), git::push)])
        .route("/api/v1/git/{id}/history", [get(reads(AgentKey).audited_as("git.history"), git::history)])
}

fn task_routes() -> Routes<Arc<Service>> {
    Routes::new()
        .route(
            "/api/v1/agents",
            [
                get(reads(AgentKey).audited_as("agent.list"), agents::list),
                post(changes(TeamKey, "agent.create"), agents::create),
            ],
        )
        .route(
            "/api/v1/agents/{id}",
            [
                get(reads(AgentKey).audited_as("agent.get"), agents::get),
                delete(changes(AgentKey, "agent.remove"), agents::remove),
            ],
        )
        .route("/api/v1/agents/{id}/start-task", [post(changes(AgentKey, "task.start"), start_task::start_task)])
        .route(
            "/api/v1/tasks",
            [
                get(reads(AgentKey).audited_as("task.list"), tasks::list),
                post(changes(AgentKey, "task.create"), tasks::create),
            ],
        )
        .route(
            "/api/v1/tasks/{id}",
            [
                get(reads(AgentKey).audited_as("task.get"), tasks::get),
                patch(changes(AgentKey, "task.change"), tasks::change),
            ],
        )
        .route("/api/v1/tasks/{id}/finish", [post(changes(AgentKey, "task.finish"), tasks::finish)])
        .route("/api/v1/tasks/{id}/fail", [post(changes(AgentKey, "task.fail"), tasks::fail)])
        .route("/api/v1/tasks/{id}/cancel", [post(changes(AgentKey, "task.cancel"), tasks::cancel)])
}

fn record_routes() -> Routes<Arc<Service>> {
    Routes::new()
        .route("/api/v1/commands", [get(reads(AgentKey).audited_as("command.list"), commands::list)])
        .route("/api/v1/commands/{id}", [get(reads(AgentKey).audited_as("command.get"), commands::get)])
        .route("/api/v1/audit", [get(reads(AgentKey).audited_as("audit.list"), audit::list)])
        .route("/api/v1/audit/export", [get(reads(AdminKey).audited_as("audit.export"), audit::export)])
        .route("/api/v1/audit/verify", [get(reads(AdminKey).audited_as("audit.verify"), audit::verify)])
        .route("/api/v1/usage", [get(reads(AgentKey).audited_as("usage.report"), usage::report)])
        .route("/api/v1/sse", [get(reads(AgentKey).audited_as("event.follow"), sse::follow)])
        .route("/api/v1/teams", [get(reads(AdminKey).audited_as("team.list"), teams::list)])
        .route("/api/v1/teams/{id}", [put(changes(AdminKey, "team.ensure"), teams::ensure)])
        .route(
            "/api/v1/teams/{id}/members/{member}",
            [
                put(changes(AdminKey, "team.add_member"), teams::add_member),
                delete(changes(AdminKey, "team.remove_member"), teams::remove_member),
            ],
        )
}
