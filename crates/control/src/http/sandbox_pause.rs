//! `POST /sandboxes/{id}/pause`

use std::sync::Arc;

use axum::extract::{Path, State};
use http::StatusCode;
use isopod_wire::node::PauseMode;
use serde::Deserialize;

use super::app::App;
use super::auth::Caller;
use super::body::JsonBody;
use super::error::ApiError;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct PauseBody {
    memory: Option<bool>,
    require_healthy_guest: Option<bool>,
}

pub(super) async fn pause(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path(id): Path<String>,
    body: JsonBody,
) -> Result<StatusCode, ApiError> {
    let body: PauseBody = body.parse_lenient()?;
    let mode = if body.memory.unwrap_or(true) { PauseMode::Memory } else { PauseMode::Filesystem };
    let healthy_only = body.require_healthy_guest.unwrap_or(false);
    caller.sandbox(&app.fleet, &id).await?.pause(mode, healthy_only).await?;
    Ok(StatusCode::NO_CONTENT)
}
