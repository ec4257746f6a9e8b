//! `DELETE /runtime/{run_id}/cleanup` and `DELETE /cleanup/{run_id}`: the end of a run. May be asked for again and again.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use serde_json::{Value, json};

use super::super::auth::Caller;
use super::super::error::ApiError;
use super::parse_run;
use crate::app::App;

pub(super) async fn cleanup(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path(run_id): Path<String>,
) -> Result<Json<Value>, ApiError> {
    let run = parse_run(&run_id)?;
    let disposed = app.sessions.dispose(&caller.team, &run).await?;
    Ok(Json(json!({ "status": "cleaned", "run_id": run_id, "killed": disposed.killed })))
}
