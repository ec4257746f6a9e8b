//! `/runtime/{run_id}/files`: the run's directories on this host. A file that is put here is in the sandbox at the next
//! call.

use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::response::Response;
use http::StatusCode;
use isopod_control::http::{ApiError, Caller};
use serde_json::{Value, json};

use super::{parse_path, parse_run, stream};
use crate::Agents;

pub(super) async fn list(
    State(app): State<Arc<Agents>>,
    caller: Caller,
    Path(run_id): Path<String>,
) -> Result<Json<Value>, ApiError> {
    let run = parse_run(&run_id)?;
    let files = app.sessions.list_files(&caller.team, &run).await?;
    Ok(Json(json!({ "run_id": run_id, "files": files })))
}

pub(super) async fn get(
    State(app): State<Arc<Agents>>,
    caller: Caller,
    Path((run_id, path)): Path<(String, String)>,
) -> Result<Response, ApiError> {
    let (run, path) = (parse_run(&run_id)?, parse_path(&path)?);
    let tree = app.sessions.find_file(&caller.team, &run, &path).await?;
    stream::send(tree, path).await
}

pub(super) async fn put(
    State(app): State<Arc<Agents>>,
    caller: Caller,
    Path((run_id, path)): Path<(String, String)>,
    body: Body,
) -> Result<(StatusCode, Json<Value>), ApiError> {
    let (run, path) = (parse_run(&run_id)?, parse_path(&path)?);
    let files = app.sessions.files_of(&caller.team, &run).await?;
    let (shown, max_bytes) = (path.as_str().to_owned(), app.sessions.settings().caps.file_bytes);
    let size = stream::receive(files.input, path, body.into_data_stream(), max_bytes).await?;
    Ok((StatusCode::CREATED, Json(json!({ "run_id": run_id, "filename": shown, "size_bytes": size }))))
}

/// Removes a file from the input. The sandbox keeps its copy.
pub(super) async fn remove(
    State(app): State<Arc<Agents>>,
    caller: Caller,
    Path((run_id, path)): Path<(String, String)>,
) -> Result<StatusCode, ApiError> {
    let (run, path) = (parse_run(&run_id)?, parse_path(&path)?);
    match app.sessions.remove_input(&caller.team, &run, &path).await? {
        true => Ok(StatusCode::NO_CONTENT),
        false => Err(ApiError::not_found(format!("the input has no file {:?}", path.as_str()))),
    }
}
