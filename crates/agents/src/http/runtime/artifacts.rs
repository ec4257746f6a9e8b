//! `/runtime/artifacts`: the artifacts of runs.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use isopod_api::{ApiError, Caller, Created, Download};
use isopod_store::clock::Timestamp;
use isopod_store::{ArtifactInfo, Promotion};
use serde::Serialize;
use utoipa::ToSchema;

use super::client_id::ClientId;
use super::{parse_path, parse_run, stream};
use crate::Agents;

#[derive(Serialize, ToSchema)]
pub(super) struct RunsWithArtifacts {
    runs: Vec<RunWithArtifacts>,
}

#[derive(Serialize, ToSchema)]
struct RunWithArtifacts {
    run_id: String,
    /// How many.
    artifacts: i64,
    last_generated_at: Timestamp,
}

/// What came out of a run.
#[derive(Serialize, ToSchema)]
#[schema(as = Artifacts)]
pub(super) struct ArtifactList {
    run_id: String,
    artifacts: Vec<ArtifactInfo>,
    /// Null where there are none.
    expires_at: Option<Timestamp>,
}

#[derive(Serialize, ToSchema)]
#[schema(as = RemovedArtifacts)]
pub(super) struct Removed {
    run_id: String,
    /// How many.
    removed: u64,
}

/// Where it is now, where it came from, and how long it is kept.
#[derive(Serialize, ToSchema)]
#[schema(as = PromotedArtifact)]
pub(super) struct Promoted {
    client_id: String,
    run_id: String,
    #[serde(flatten)]
    artifact: ArtifactInfo,
    promoted_at: Timestamp,
    expires_at: Timestamp,
}

pub(super) async fn list_runs(
    State(app): State<Arc<Agents>>,
    caller: Caller,
) -> Result<Json<RunsWithArtifacts>, ApiError> {
    let runs = app.fleet.store.runs_with_artifacts(&caller.team).await?;
    let shown = runs.into_iter().map(|(run_id, artifacts, last_generated_at)| RunWithArtifacts {
        run_id,
        artifacts,
        last_generated_at,
    });
    Ok(Json(RunsWithArtifacts { runs: shown.collect() }))
}

pub(super) async fn list(
    State(app): State<Arc<Agents>>,
    caller: Caller,
    Path(run_id): Path<String>,
) -> Result<Json<ArtifactList>, ApiError> {
    let run = parse_run(&run_id)?;
    let artifacts = app.fleet.store.artifacts_of(&caller.team, run.id()).await?;
    let last = artifacts.iter().map(|artifact| artifact.generated_at).max();
    let expires_at = last.map(|last| last.plus(app.sessions.settings().keep_files));
    Ok(Json(ArtifactList { run_id, artifacts, expires_at }))
}

pub(super) async fn get(
    State(app): State<Arc<Agents>>,
    caller: Caller,
    Path((run_id, path)): Path<(String, String)>,
) -> Result<Download, ApiError> {
    let (run, path) = (parse_run(&run_id)?, parse_path(&path)?);
    let tree = app.sessions.find_artifact(&caller.team, &run, &path).await?;
    stream::send(tree, path).await
}

pub(super) async fn remove(
    State(app): State<Arc<Agents>>,
    caller: Caller,
    Path(run_id): Path<String>,
) -> Result<Json<Removed>, ApiError> {
    let run = parse_run(&run_id)?;
    let removed = app.sessions.remove_artifacts(&caller.team, &run).await?;
    Ok(Json(Removed { run_id, removed }))
}

/// `POST /runtime/artifacts/{run_id}/files/{path}/promote`: copies an artifact into the client's library.
pub(super) async fn promote(
    State(app): State<Arc<Agents>>,
    caller: Caller,
    ClientId(client): ClientId,
    Path((run_id, path)): Path<(String, String)>,
) -> Result<Created<Promoted>, ApiError> {
    let path = path.strip_suffix("/promote").ok_or_else(|| ApiError::not_found("no such route"))?;
    let (run, path) = (parse_run(&run_id)?, parse_path(path)?);
    let promotion = app.sessions.promote(&caller.team, &run, &client, &path).await?;
    let Promotion { client: client_id, run: run_id, artifact, promoted_at, expires_at } = promotion;
    Ok(Created(Promoted { client_id, run_id, artifact, promoted_at, expires_at }))
}
