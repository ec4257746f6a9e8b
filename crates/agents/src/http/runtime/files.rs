//! `/runtime/{run_id}/files`: the run's directories on this host. A file that is put here is in the sandbox at the next
//! call.

use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::{Path, State};
use isopod_api::{ApiError, Caller, Created, Download, Empty, NoContent};
use serde::Serialize;
use utoipa::ToSchema;

use super::{parse_path, parse_run, stream};
use crate::Agents;
use crate::sessions::ListedFile;

#[derive(Serialize, ToSchema)]
pub(super) struct RunFiles {
    run_id: String,
    files: Vec<ListedFile>,
}

#[derive(Serialize, ToSchema)]
#[schema(as = PutRunFile)]
pub(super) struct Put {
    run_id: String,
    filename: String,
    size_bytes: u64,
}

pub(super) async fn list(
    State(app): State<Arc<Agents>>,
    caller: Caller,
    Path(run_id): Path<String>,
) -> Result<Json<RunFiles>, ApiError> {
    let run = parse_run(&run_id)?;
    let files = app.sessions.list_files(&caller.team, &run).await?;
    Ok(Json(RunFiles { run_id, files }))
}

pub(super) async fn get(
    State(app): State<Arc<Agents>>,
    caller: Caller,
    Path((run_id, path)): Path<(String, String)>,
) -> Result<Download, ApiError> {
    let (run, path) = (parse_run(&run_id)?, parse_path(&path)?);
    let tree = app.sessions.find_file(&caller.team, &run, &path).await?;
    stream::send(tree, path).await
}

pub(super) async fn put(
    State(app): State<Arc<Agents>>,
    caller: Caller,
    Path((run_id, path)): Path<(String, String)>,
    body: Body,
) -> Result<Created<Put>, ApiError> {
    let (run, path) = (parse_run(&run_id)?, parse_path(&path)?);
    let files = app.sessions.files_of(&caller.team, &run).await?;
    let (filename, max_bytes) = (path.as_str().to_owned(), app.sessions.settings().caps.file_bytes);
    let size = stream::receive(files.input, path, body.into_data_stream(), max_bytes).await?;
    Ok(Created(Put { run_id, filename, size_bytes: size }))
}

/// Removes a file from the input. The sandbox keeps its copy.
pub(super) async fn remove(
    State(app): State<Arc<Agents>>,
    caller: Caller,
    Path((run_id, path)): Path<(String, String)>,
) -> Result<NoContent, ApiError> {
    let (run, path) = (parse_run(&run_id)?, parse_path(&path)?);
    match app.sessions.remove_input(&caller.team, &run, &path).await? {
        true => Ok(Empty),
        false => Err(ApiError::not_found(format!("the input has no file {:?}", path.as_str()))),
    }
}
