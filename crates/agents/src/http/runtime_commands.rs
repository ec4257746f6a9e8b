//! Commands for runs: `stop`, `resume`, `approve`. Each returns when it is recorded.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use isopod_api::{ApiError, Caller, JsonBody};
use serde::Deserialize;
use utoipa::ToSchema;

use super::runtime_runs::{RunCommandResult, parse_run_id};
use crate::Agents;
use crate::runs::{Command, CommandError, Refusal};

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct NoBody {}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Approval)]
pub(super) struct ApproveBody {
    /// One node; all that wait without it.
    #[serde(alias = "agent_id", alias = "node_id")]
    node: Option<String>,
    #[serde(default = "yes")]
    approved: bool,
}

fn yes() -> bool {
    true
}

pub(super) async fn stop(
    State(app): State<Arc<Agents>>,
    caller: Caller,
    Path(id): Path<String>,
    body: JsonBody<NoBody>,
) -> Result<Json<RunCommandResult>, ApiError> {
    let NoBody {} = body.parse()?;
    command(&app, &caller, &id, Command::Stop).await
}

pub(super) async fn resume(
    State(app): State<Arc<Agents>>,
    caller: Caller,
    Path(id): Path<String>,
    body: JsonBody<NoBody>,
) -> Result<Json<RunCommandResult>, ApiError> {
    let NoBody {} = body.parse()?;
    command(&app, &caller, &id, Command::Resume).await
}

pub(super) async fn approve(
    State(app): State<Arc<Agents>>,
    caller: Caller,
    Path(id): Path<String>,
    body: JsonBody<ApproveBody>,
) -> Result<Json<RunCommandResult>, ApiError> {
    let ApproveBody { node, approved } = body.parse()?;
    command(&app, &caller, &id, Command::Approve { node, approved }).await
}

async fn command(
    app: &Agents,
    caller: &Caller,
    id: &str,
    command: Command,
) -> Result<Json<RunCommandResult>, ApiError> {
    let run = parse_run_id(id)?;
    app.runs.command(&caller.team, &run, command).await?;
    Ok(Json(RunCommandResult::new(&run)))
}

/// Ends the run if it is still active. Returns whether it was.
pub(super) async fn cancel_run(app: &Agents, caller: &Caller, id: &str) -> Result<bool, ApiError> {
    let Ok(run) = id.parse() else { return Ok(false) };
    match app.runs.command(&caller.team, &run, Command::Cancel).await {
        Ok(()) => Ok(true),
        Err(CommandError::Refused(Refusal::NotFound | Refusal::Ended)) => Ok(false),
        Err(error) => Err(error.into()),
    }
}
