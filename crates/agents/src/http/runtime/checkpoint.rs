//! `POST /runtime/{run_id}/checkpoint` and `POST /runtime/{run_id}/rollback`: undo what was done in a run's sandbox.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use isopod_api::{ApiError, Caller, JsonBody};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::parse_run;
use crate::Agents;
use crate::sessions::CheckpointName;

const DEFAULT_NAME: &str = "default";
const MAX_NAME: usize = 128;

#[derive(Default, Deserialize, ToSchema)]
#[serde(default)]
#[schema(as = RunCheckpoint)]
pub(super) struct CheckpointBody {
    /// The checkpoint, if the run has several.
    #[schema(min_length = 1, max_length = 128)]
    name: Option<String>,
}

#[derive(Serialize, ToSchema)]
#[schema(as = RunCheckpointResult)]
pub(super) struct Checkpointed {
    status: &'static str,
    run_id: String,
    name: String,
}

/// Takes a checkpoint, in the place of one of the same name.
pub(super) async fn checkpoint(
    State(app): State<Arc<Agents>>,
    caller: Caller,
    Path(run_id): Path<String>,
    body: JsonBody<CheckpointBody>,
) -> Result<Json<Checkpointed>, ApiError> {
    let (run, name) = (parse_run(&run_id)?, parse_name(body.parse()?)?);
    app.sessions.take_checkpoint(&caller.team, &run, CheckpointName::Client(name.clone())).await?;
    Ok(Json(Checkpointed { status: "checkpointed", run_id, name }))
}

/// Puts the run's sandbox back.
pub(super) async fn rollback(
    State(app): State<Arc<Agents>>,
    caller: Caller,
    Path(run_id): Path<String>,
    body: JsonBody<CheckpointBody>,
) -> Result<Json<Checkpointed>, ApiError> {
    let (run, name) = (parse_run(&run_id)?, parse_name(body.parse()?)?);
    if !app.sessions.roll_back(&caller.team, &run, CheckpointName::Client(name.clone())).await? {
        return Err(ApiError::not_found(format!("run '{run_id}' has no checkpoint '{name}'")));
    }
    Ok(Json(Checkpointed { status: "rolled_back", run_id, name }))
}

fn parse_name(body: CheckpointBody) -> Result<String, ApiError> {
    let name = body.name.unwrap_or_else(|| DEFAULT_NAME.to_owned());
    match name.len() {
        1..=MAX_NAME => Ok(name),
        _ => Err(ApiError::bad_request(format!("name must have 1 to {MAX_NAME} characters"))),
    }
}
