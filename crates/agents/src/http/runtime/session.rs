//! `GET /runtime/{run_id}/session`: the sandbox of a run, for clients that use it through an SDK.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use isopod_api::{ApiError, Caller};
use isopod_store::clock::Timestamp;
use serde::Serialize;
use utoipa::ToSchema;

use super::parse_run;
use crate::Agents;

/// The sandbox of a run.
#[derive(Serialize, ToSchema)]
#[schema(as = RunSession)]
pub(super) struct SessionView {
    run_id: String,
    sandbox_id: Option<String>,
    /// `running`, `paused` or `gone`.
    state: &'static str,
    end_at: Option<Timestamp>,
    restarts: u32,
}

pub(super) async fn get(
    State(app): State<Arc<Agents>>,
    caller: Caller,
    Path(run_id): Path<String>,
) -> Result<Json<SessionView>, ApiError> {
    let run = parse_run(&run_id)?;
    let row = app.fleet.store.find_session_of(&caller.team, &run).await?;
    let row = row.ok_or_else(|| ApiError::not_found(format!("run {run_id:?} has no session")))?;
    let sandbox = row.sandbox.as_ref().and_then(|id| app.fleet.find_of(&caller.team, id));
    let view = sandbox.map(|sandbox| sandbox.view());
    Ok(Json(SessionView {
        run_id,
        sandbox_id: row.sandbox.as_ref().map(|id| id.to_string()),
        state: view.as_ref().and_then(|view| view.row.state.shown()).unwrap_or("gone"),
        end_at: view.map(|view| view.row.ends_at),
        restarts: row.restarts,
    }))
}
