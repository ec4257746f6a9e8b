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
    /// The sandboxes that are gone now.
    sandbox_ids: Vec<String>,
}

pub(super) async fn cleanup(
    State(app): State<Arc<Agents>>,
    caller: Caller,
    Path(run_id): Path<String>,
) -> Result<Json<Cleaned>, ApiError> {
    let run = parse_run(&run_id)?;
    // This also ends a workflow of this name, and its own cleanup may be the one that removes the sandbox.
    let before = app.sessions.sandboxes_of_owner(&caller.team, &run).await?;
    let cancelled = cancel_run(&app, &caller, &run_id).await?;
    let mut gone = app.sessions.dispose(&caller.team, &run).await?.killed;
    if cancelled {
        gone.extend(before.into_iter().filter(|id| !gone.contains(id)).collect::<Vec<_>>());
    }
    let sandbox_ids = gone.iter().map(ToString::to_string).collect();
    Ok(Json(Cleaned { status: "cleaned", run_id, killed: !gone.is_empty(), sandbox_ids }))
}
