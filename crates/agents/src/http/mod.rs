//! Routes for agents: tool calls and workflows below `/runtime`, the files and tools of executions below `/api/v1`.

mod error;
mod execution_files;
mod executions;
mod runtime;
mod runtime_agents;
mod runtime_commands;
mod runtime_runs;
mod runtime_watch;
mod toolkit;

use std::sync::Arc;

use isopod_api::Needs::{AgentKey, TeamKey, TeamView};
use isopod_api::{Location, Param, Routes, changes, delete, get, head, post, put, reads};

use crate::Agents;
use crate::toolkit::Tool;

/// Every route of this crate.
pub fn routes() -> Routes<Arc<Agents>> {
    execution_routes().merge(runtime::routes()).merge(runtime_runs::routes())
}

/// What an execution may be called.
const EXECUTION_ID: Param = Param::pattern("id", "^[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}$");

fn execution_routes() -> Routes<Arc<Agents>> {
    Routes::new()
        .route("/api/v1/executions", [get(reads(TeamView), "List the team's executions", executions::list)])
        .route(
            "/api/v1/toolkit",
            [get(
                reads(AgentKey),
                "The tools that agents can call, with the schemas of their arguments",
                toolkit::tools,
            )],
        )
        .merge(file_routes())
        .merge(toolkit_routes())
        .path_parameter(EXECUTION_ID)
}

/// Files need a workspace, which a server may not have.
fn file_routes() -> Routes<Arc<Agents>> {
    Routes::new()
        .route(
            "/api/v1/executions/{id}",
            [
                put(
                    changes(TeamKey, "execution.open"),
                    "Make an execution's directories and show it",
                    executions::open,
                ),
                delete(changes(TeamKey, "execution.remove"), "Remove all files of an execution", executions::remove),
            ],
        )
        .route(
            "/api/v1/executions/{id}/info",
            [get(reads(TeamView), "What an execution's files take, and where they are", executions::info)],
        )
        .route(
            "/api/v1/executions/{id}/cleanup",
            [post(changes(TeamKey, "execution.cleanup"), "Remove old temporary files", executions::cleanup)],
        )
        .route(
            "/api/v1/executions/{id}/copy",
            [post(changes(TeamKey, "execution.copy_file"), "Write a file under another key too", executions::copy)
                .may_refuse(&[507])],
        )
        .route(
            "/api/v1/executions/{id}/move",
            [post(changes(TeamKey, "execution.move_file"), "Give a file another key", executions::rename)
                .may_refuse(&[507])],
        )
        .route(
            "/api/v1/executions/{id}/files",
            [get(reads(TeamView), "List an execution's files", execution_files::list)],
        )
        .route(
            "/api/v1/executions/{id}/files/{*key}",
            [
                get(reads(TeamView), "Read a file", execution_files::get),
                head(reads(TeamView), "Whether there is a file, and how large it is", execution_files::head),
                put(
                    changes(TeamKey, "execution.write_file"),
                    "Write a file, whole or not at all",
                    execution_files::put,
                )
                .may_refuse(&[507]),
                delete(changes(TeamKey, "execution.remove_file"), "Remove a file", execution_files::delete),
            ],
        )
        .may_refuse(&[409, 501])
}

fn toolkit_routes() -> Routes<Arc<Agents>> {
    Routes::new()
        .route(
            "/api/v1/executions/{id}/toolkit",
            [
                get(reads(TeamView), "How an execution's tools behave", toolkit::config),
                put(changes(TeamKey, "toolkit.configure"), "Say how an execution's tools behave", toolkit::configure),
                post(
                    changes(TeamKey, "toolkit.start"),
                    "Create the execution's sandbox if it has none",
                    toolkit::start,
                )
                .may_refuse(&[429, 504]),
                delete(changes(TeamKey, "toolkit.end"), "End the execution's sandbox", toolkit::end).may_refuse(&[504]),
            ],
        )
        .route(
            "/api/v1/executions/{id}/toolkit/{tool}",
            [post(changes(TeamKey, "toolkit.call"), "Call a tool", toolkit::call).may_refuse(&[429, 504, 507])],
        )
        .path_parameter(Param::typed::<Tool>("tool"))
        .may_refuse(&[409, 421])
        .located(Location::Named("execution"), "id")
}
