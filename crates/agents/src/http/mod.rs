//! Routes for agents: tool calls and workflows below `/runtime`, the files and tools of executions below `/api/v1`.

mod error;
mod execution_files;
mod executions;
mod runtime;
mod runtime_commands;
mod runtime_runs;
mod runtime_watch;
mod toolkit;

use std::sync::Arc;

use isopod_control::http::Needs::{AgentKey, TeamKey, TeamView};
use isopod_control::http::{Routes, changes, delete, get, head, post, put, reads};

use crate::Agents;

/// Every route of this crate.
pub fn routes() -> Routes<Arc<Agents>> {
    execution_routes().merge(runtime::routes()).merge(runtime_runs::routes())
}

fn execution_routes() -> Routes<Arc<Agents>> {
    Routes::new()
        .route("/api/v1/executions", [get(reads(TeamView), executions::list)])
        .route(
            "/api/v1/executions/{id}",
            [
                put(changes(TeamKey, "execution.open"), executions::open),
                delete(changes(TeamKey, "execution.remove"), executions::remove),
            ],
        )
        .route("/api/v1/executions/{id}/info", [get(reads(TeamView), executions::info)])
        .route("/api/v1/executions/{id}/cleanup", [post(changes(TeamKey, "execution.cleanup"), executions::cleanup)])
        .route("/api/v1/executions/{id}/copy", [post(changes(TeamKey, "execution.copy_file"), executions::copy)])
        .route("/api/v1/executions/{id}/move", [post(changes(TeamKey, "execution.move_file"), executions::rename)])
        .route("/api/v1/executions/{id}/files", [get(reads(TeamView), execution_files::list)])
        .route(
            "/api/v1/executions/{id}/files/{*key}",
            [
                get(reads(TeamView), execution_files::get),
                head(reads(TeamView), execution_files::head),
                put(changes(TeamKey, "execution.write_file"), execution_files::put),
                delete(changes(TeamKey, "execution.remove_file"), execution_files::delete),
            ],
        )
        .route("/api/v1/toolkit", [get(reads(AgentKey), toolkit::tools)])
        .route(
            "/api/v1/executions/{id}/toolkit",
            [
                get(reads(TeamView), toolkit::config),
                put(changes(TeamKey, "toolkit.configure"), toolkit::configure),
                post(changes(TeamKey, "toolkit.start"), toolkit::start),
                delete(changes(TeamKey, "toolkit.end"), toolkit::end),
            ],
        )
        .route("/api/v1/executions/{id}/toolkit/{tool}", [post(changes(TeamKey, "toolkit.call"), toolkit::call)])
}
