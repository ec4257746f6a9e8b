//! `POST /sandboxes/{id}/pause`

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Path, State};
use http::StatusCode;
use isopod_api::{ApiError, Caller, Empty, JsonBody, NoContent};
use isopod_wire::node::{NodeError, PauseMode};
use serde::Deserialize;
use utoipa::ToSchema;

use super::app::App;
use super::find_sandbox::live_sandbox;
use crate::lifecycle::{ActError, Refusal};

#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Pause)]
pub(super) struct PauseBody {
    memory: Option<bool>,
    require_healthy_guest: Option<bool>,
}

pub(super) async fn pause(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path(id): Path<String>,
    body: JsonBody<PauseBody>,
) -> Result<NoContent, ApiError> {
    let body = body.parse()?;
    let mode = if body.memory.unwrap_or(true) { PauseMode::Memory } else { PauseMode::Filesystem };
    let healthy_only = body.require_healthy_guest.unwrap_or(false);
    let paused = live_sandbox(&app.fleet, &caller, &id).await?.pause(mode, healthy_only).await;
    paused.map_err(not_paused)?;
    Ok(Empty)
}

/// E2B's SDKs take every 409 for "already paused", so nothing else may have this status.
fn not_paused(error: ActError) -> ApiError {
    match error {
        ActError::Refused(Refusal::Busy) | ActError::Node(NodeError::WrongState { .. }) => {
            let busy = ApiError::new(StatusCode::SERVICE_UNAVAILABLE, Refusal::Busy.to_string());
            busy.retry_in(Duration::from_secs(1))
        }
        ActError::Node(NodeError::Memory { reason, .. }) => {
            let message = format!("the sandbox cannot be paused with its memory, and keeps running: {reason}");
            ApiError::new(StatusCode::UNPROCESSABLE_ENTITY, message).with_code("memory_not_saved").without_retry()
        }
        error => error.into(),
    }
}
