//! `/runtime/artifacts`: the artifacts of runs.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use axum::response::Response;
use http::StatusCode;
use isopod_control::http::{ApiError, Caller};
use serde_json::{Value, json};

use super::client_id::ClientId;
use super::{parse_path, parse_run, stream};
use crate::Agents;
use crate::sessions::copy;

pub(super) async fn list_runs(State(app): State<Arc<Agents>>, caller: Caller) -> Result<Json<Value>, ApiError> {
    let runs = app.fleet.store.runs_with_artifacts(&caller.team).await?;
    let shown: Vec<Value> = runs
        .into_iter()
        .map(|(run, count, last)| json!({ "run_id": run, "artifacts": count, "last_generated_at": last }))
        .collect();
    Ok(Json(json!({ "runs": shown })))
}

pub(super) async fn list(
    State(app): State<Arc<Agents>>,
    caller: Caller,
    Path(run_id): Path<String>,
) -> Result<Json<Value>, ApiError> {
    let run = parse_run(&run_id)?;
    let artifacts = app.fleet.store.artifacts_of(&caller.team, run.id()).await?;
    let expires = artifacts.iter().map(|artifact| artifact.generated_at).max();
    let expires = expires.map(|last| last.plus(app.sessions.settings().keep_files));
    Ok(Json(json!({ "run_id": run_id, "artifacts": artifacts, "expires_at": expires })))
}

pub(super) async fn get(
    State(app): State<Arc<Agents>>,
    caller: Caller,
    Path((run_id, path)): Path<(String, String)>,
) -> Result<Response, ApiError> {
    let (run, path) = (parse_run(&run_id)?, parse_path(&path)?);
    let tree = app.sessions.find_artifact(&caller.team, &run, &path).await?;
    stream::send(tree, path).await
}

pub(super) async fn remove(
    State(app): State<Arc<Agents>>,
    caller: Caller,
    Path(run_id): Path<String>,
) -> Result<Json<Value>, ApiError> {
    let run = parse_run(&run_id)?;
    let removed = app.sessions.remove_artifacts(&caller.team, &run).await?;
    Ok(Json(json!({ "run_id": run_id, "removed": removed })))
}

/// `POST /runtime/artifacts/{run_id}/files/{path}/promote`: copies an artifact into the client's library.
pub(super) async fn promote(
    State(app): State<Arc<Agents>>,
    caller: Caller,
    ClientId(client): ClientId,
    Path((run_id, path)): Path<(String, String)>,
) -> Result<(StatusCode, Json<Value>), ApiError> {
    let path = path.strip_suffix("/promote").ok_or_else(|| ApiError::not_found("no such route"))?;
    let (run, path) = (parse_run(&run_id)?, parse_path(path)?);
    let tree = app.sessions.find_artifact(&caller.team, &run, &path).await?;
    let library = app.sessions.ensure_library(&caller.team, &client).await?;
    copy(tree, &path, library, &path).await?;
    Ok((StatusCode::CREATED, Json(json!({ "filename": path.as_str(), "client_id": client }))))
}
