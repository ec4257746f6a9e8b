//! `/runtime`: tool calls of agents, the files of their runs, and cleanup.

mod artifacts;
mod attach;
mod cleanup;
mod client_id;
mod execute;
mod files;
mod library;
mod session;
mod stream;
mod tools;

pub(super) use client_id::ClientId;

use std::sync::Arc;

use isopod_control::http::Needs::TeamKey;
use isopod_control::http::{ApiError, Routes, changes, delete, get, post, put, reads};
use isopod_store::Owner;

use crate::Agents;
use crate::sessions::RelPath;

pub(super) fn routes() -> Routes<Arc<Agents>> {
    Routes::new()
        .route("/runtime/tools", [get(reads(TeamKey), tools::list)])
        .route("/runtime/library", [get(reads(TeamKey), library::list)])
        .route(
            "/runtime/library/upload",
            [post(changes(TeamKey, "library.upload"), library::upload).without_body_limit()],
        )
        .route(
            "/runtime/library/{*path}",
            [get(reads(TeamKey), library::get), delete(changes(TeamKey, "library.remove"), library::remove)],
        )
        .route("/runtime/artifacts", [get(reads(TeamKey), artifacts::list_runs)])
        .route(
            "/runtime/artifacts/{run_id}",
            [get(reads(TeamKey), artifacts::list), delete(changes(TeamKey, "run.remove_artifacts"), artifacts::remove)],
        )
        .route(
            "/runtime/artifacts/{run_id}/files/{*path}",
            [get(reads(TeamKey), artifacts::get), post(changes(TeamKey, "run.promote_artifact"), artifacts::promote)],
        )
        .route("/runtime/{run_id}/execute", [post(changes(TeamKey, "run.execute"), execute::execute)])
        .route("/runtime/{run_id}/session", [get(reads(TeamKey), session::get)])
        .route("/runtime/{run_id}/library", [post(changes(TeamKey, "run.attach_files"), attach::attach)])
        .route("/runtime/{run_id}/tools/{name}", [post(changes(TeamKey, "run.use_tool"), tools::call)])
        .route("/runtime/{run_id}/files", [get(reads(TeamKey), files::list)])
        .route(
            "/runtime/{run_id}/files/{*path}",
            [
                get(reads(TeamKey), files::get),
                put(changes(TeamKey, "run.write_file"), files::put),
                delete(changes(TeamKey, "run.remove_file"), files::remove),
            ],
        )
        .route("/runtime/{run_id}/artifacts", [get(reads(TeamKey), artifacts::list)])
        .route("/runtime/{run_id}/cleanup", [delete(changes(TeamKey, "run.cleanup"), cleanup::cleanup)])
        .route("/cleanup/{run_id}", [delete(changes(TeamKey, "run.cleanup"), cleanup::cleanup)])
}

fn parse_run(id: &str) -> Result<Owner, ApiError> {
    Owner::run(id).map_err(|error| ApiError::bad_request(format!("invalid run id: {error}")))
}

fn parse_path(path: &str) -> Result<RelPath, ApiError> {
    RelPath::parse(path).map_err(|error| ApiError::bad_request(error.to_string()))
}
