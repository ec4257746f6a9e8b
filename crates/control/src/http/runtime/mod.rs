//! `/runtime`: the tool calls of agents, the files of their runs, and the end of both.

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

use std::sync::Arc;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::routing::{delete, get, post};

pub(super) use client_id::ClientId;

use super::error::ApiError;
use crate::app::App;
use crate::sessions::{Owner, RelPath};

pub(super) fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/runtime/tools", get(tools::list))
        .route("/runtime/library", get(library::list))
        .route("/runtime/library/upload", post(library::upload).layer(DefaultBodyLimit::disable()))
        .route("/runtime/library/{*path}", get(library::get).delete(library::remove))
        .route("/runtime/artifacts", get(artifacts::list_runs))
        .route("/runtime/artifacts/{run_id}", get(artifacts::list).delete(artifacts::remove))
        .route("/runtime/artifacts/{run_id}/files/{*path}", get(artifacts::get).post(artifacts::promote))
        .route("/runtime/{run_id}/execute", post(execute::execute))
        .route("/runtime/{run_id}/session", get(session::get))
        .route("/runtime/{run_id}/library", post(attach::attach))
        .route("/runtime/{run_id}/tools/{name}", post(tools::call))
        .route("/runtime/{run_id}/files", get(files::list))
        .route("/runtime/{run_id}/files/{*path}", get(files::get).put(files::put).delete(files::remove))
        .route("/runtime/{run_id}/artifacts", get(artifacts::list))
        .route("/runtime/{run_id}/cleanup", delete(cleanup::cleanup))
        .route("/cleanup/{run_id}", delete(cleanup::cleanup))
}

/// A run by its id (S1.56).
fn parse_run(id: &str) -> Result<Owner, ApiError> {
    Owner::run(id).map_err(|error| ApiError::bad_request(format!("invalid run id: {error}")))
}

fn parse_path(path: &str) -> Result<RelPath, ApiError> {
    RelPath::parse(path).map_err(|error| ApiError::bad_request(error.to_string()))
}
