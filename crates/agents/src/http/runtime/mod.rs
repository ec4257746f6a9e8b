//! `/runtime`: tool calls of agents, the files of their runs, and cleanup.

mod artifacts;
mod attach;
mod checkpoint;
mod cleanup;
mod client_id;
mod execute;
mod files;
mod library;
mod session;
mod stream;
mod tool_log;
mod tools;

pub(super) use client_id::ClientId;

use std::sync::Arc;

use isopod_api::{ApiError, Location, Needs::TeamKey, Param, Routes, changes, delete, get, post, put, reads};
use isopod_store::Owner;

use crate::Agents;
use crate::sessions::RelPath;

/// What a run may be called.
pub(super) const RUN_ID: Param = Param::pattern("run_id", "^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$");

pub(super) fn routes() -> Routes<Arc<Agents>> {
    let routes = run_routes().merge(artifact_routes()).merge(library_routes());
    routes.path_parameter(RUN_ID).path_parameter(PATH).located(Location::Named("run"), "run_id")
}

/// What [`RelPath`] takes.
const PATH: Param = Param::text_of("path", 1, 1024).about("a path below the directory; slashes are part of it");

fn run_routes() -> Routes<Arc<Agents>> {
    Routes::new()
        .route("/runtime/tools", [get(reads(TeamKey), "Schemas of the tools for function calling", tools::list)])
        .route(
            "/runtime/{run_id}/execute",
            [post(changes(TeamKey, "run.execute"), "Run code or a command in the run's sandbox", execute::execute)
                .needs_body()
                .may_refuse(&[409, 421, 429, 504])],
        )
        .route(
            "/runtime/{run_id}/tools/{name}",
            [post(changes(TeamKey, "run.use_tool"), "Call a tool with a model's arguments", tools::call)
                .may_refuse(&[409, 421, 429, 504])],
        )
        .route(
            "/runtime/{run_id}/checkpoint",
            [post(
                changes(TeamKey, "run.checkpoint"),
                "Keep what a run's sandbox has and does",
                checkpoint::checkpoint,
            )
            .may_refuse(&[409, 421, 429, 501, 504])],
        )
        .route(
            "/runtime/{run_id}/rollback",
            [post(changes(TeamKey, "run.rollback"), "Put a run's sandbox back to a checkpoint", checkpoint::rollback)
                .may_refuse(&[409, 421, 429, 501, 504])],
        )
        .route("/runtime/{run_id}/session", [get(reads(TeamKey), "Which sandbox a run has", session::get)])
        .route(
            "/runtime/{run_id}/library",
            [post(
                changes(TeamKey, "run.attach_files"),
                "Copy files of the library into the input of a run",
                attach::attach,
            )
            .may_refuse(&[409])],
        )
        .route("/runtime/{run_id}/files", [get(reads(TeamKey), "List the files of a run", files::list)])
        .route(
            "/runtime/{run_id}/files/{*path}",
            [
                get(reads(TeamKey), "Read a file of a run: its output before its input", files::get),
                put(changes(TeamKey, "run.write_file"), "Put a file into the input of a run", files::put)
                    .may_refuse(&[409]),
                delete(changes(TeamKey, "run.remove_file"), "Take a file out of the input of a run", files::remove),
            ],
        )
        .route(
            "/runtime/{run_id}/cleanup",
            [delete(changes(TeamKey, "run.cleanup"), END_A_RUN, cleanup::cleanup).may_refuse(&[409, 421])],
        )
        .route(
            "/cleanup/{run_id}",
            [delete(changes(TeamKey, "run.cleanup"), END_A_RUN, cleanup::cleanup).may_refuse(&[409, 421])],
        )
}

const END_A_RUN: &str = "End a run: its sandbox is removed";

fn artifact_routes() -> Routes<Arc<Agents>> {
    Routes::new()
        .route(
            "/runtime/{run_id}/artifacts",
            [get(reads(TeamKey), "What came out of a run", artifacts::list).never_refuses(404)],
        )
        .route("/runtime/artifacts", [get(reads(TeamKey), "Runs that have artifacts", artifacts::list_runs)])
        .route(
            "/runtime/artifacts/{run_id}",
            [
                get(reads(TeamKey), "What came out of a run", artifacts::list).never_refuses(404),
                delete(changes(TeamKey, "run.remove_artifacts"), "Remove what came out of a run", artifacts::remove),
            ],
        )
        .route(
            "/runtime/artifacts/{run_id}/files/{*path}",
            [
                get(reads(TeamKey), "Read an artifact", artifacts::get),
                post(changes(TeamKey, "run.promote_artifact"), "Copy an artifact into the library", artifacts::promote)
                    .ending_in("/promote")
                    .may_refuse(&[409]),
            ],
        )
}

fn library_routes() -> Routes<Arc<Agents>> {
    Routes::new()
        .route("/runtime/library", [get(reads(TeamKey), "List the library", library::list)])
        .route(
            "/runtime/library/upload",
            [post(changes(TeamKey, "library.upload"), "Put files into the library", library::upload)
                .without_body_limit()
                .may_refuse(&[409])],
        )
        .route(
            "/runtime/library/{*path}",
            [
                get(reads(TeamKey), "Read a file of the library", library::get),
                delete(changes(TeamKey, "library.remove"), "Take a file out of the client's library", library::remove),
            ],
        )
}

fn parse_run(id: &str) -> Result<Owner, ApiError> {
    Owner::run(id).map_err(|error| ApiError::bad_request(format!("invalid run id: {error}")))
}

fn parse_path(path: &str) -> Result<RelPath, ApiError> {
    RelPath::parse(path).map_err(|error| ApiError::bad_request(error.to_string()))
}
