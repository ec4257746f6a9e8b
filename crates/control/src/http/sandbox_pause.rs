//! `POST /sandboxes/{id}/pause`

use std::sync::Arc;

use axum::extract::{Path, State};
use isopod_api::{ApiError, Caller, Empty, JsonBody, NoContent};
use isopod_wire::node::PauseMode;
use serde::Deserialize;
use utoipa::ToSchema;

use super::app::App;
use super::find_sandbox::live_sandbox;

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
    live_sandbox(&app.fleet, &caller, &id).await?.pause(mode, healthy_only).await?;
    Ok(Empty)
}
