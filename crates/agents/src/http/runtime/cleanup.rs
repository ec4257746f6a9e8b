//! `DELETE /runtime/{run_id}/cleanup` and `DELETE /cleanup/{run_id}`: ends a run. Idempotent.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use isopod_api::{ApiError, Caller};
use serde::Serialize;
use utoipa::ToSchema;

use super::super::runtime_commands::cancel_run;
use super::parse_run;
use crate::Agents;

#[derive(Serialize, ToSchema)]
#[schema(as = CleanedRun)]
pub(super) struct Cleaned {
    status: &'static str,
    run_id: String,
    /// Whether there was a sandbox.
    killed: bool,
}

pub(super) async fn cleanup(
    State(app): State<Arc<Agents>>,
    caller: Caller,
    Path(run_id): Path<String>,
) -> Result<Json<Cleaned>, ApiError> {
    let run = parse_run(&run_id)?;
    // This also ends a workflow of this name, and its own cleanup may be the one that removes the sandbox.
    let had_one = app.fleet.store.find_session_of(&caller.team, &run).await?.is_some_and(|row| row.sandbox.is_some());
    let cancelled = cancel_run(&app, &caller, &run_id).await?;
    let disposed = app.sessions.dispose(&caller.team, &run).await?;
    let killed = disposed.killed || (cancelled && had_one);
    Ok(Json(Cleaned { status: "cleaned", run_id, killed }))
}
