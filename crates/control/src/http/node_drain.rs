//! `POST /isopod/node/drain` and `POST /isopod/node/uncordon`: take the server out of use for maintenance of its host, and
//! back. For admins.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use isopod_api::{ApiError, Empty, JsonBody, NoContent};
use isopod_wire::SandboxId;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::app::App;
use crate::lifecycle::DrainReport;

const DEFAULT_DEADLINE: u64 = 300;
const MAX_DEADLINE: u64 = 3600;

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Drain)]
pub(super) struct DrainBody {
    /// How long to wait until paused sandboxes are saved, in seconds. 300 by default. Saving goes on after that.
    #[schema(minimum = 0, maximum = 3600)]
    deadline: Option<u64>,
}

/// Where the server's sandboxes are.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Drained)]
pub(super) struct DrainView {
    /// Sandboxes that run, and go on.
    #[schema(value_type = Vec<String>)]
    running: Vec<SandboxId>,
    /// Paused sandboxes that are on disk.
    #[schema(value_type = Vec<String>)]
    saved: Vec<SandboxId>,
    /// Paused sandboxes whose memory is still in RAM.
    not_saved: Vec<NotSavedView>,
}

#[derive(Serialize, ToSchema)]
#[schema(as = NotSaved)]
struct NotSavedView {
    #[serde(rename = "sandboxID")]
    #[schema(value_type = String)]
    sandbox: SandboxId,
    reason: String,
}

pub(super) async fn drain(State(app): State<Arc<App>>, body: JsonBody<DrainBody>) -> Result<Json<DrainView>, ApiError> {
    let deadline = body.parse()?.deadline.unwrap_or(DEFAULT_DEADLINE);
    if deadline > MAX_DEADLINE {
        return Err(ApiError::bad_request(format!("deadline must not be greater than {MAX_DEADLINE} seconds")));
    }
    let DrainReport { running, saved, not_saved } = app.fleet.drain(Duration::from_secs(deadline)).await;
    let not_saved = not_saved.into_iter().map(|(sandbox, reason)| NotSavedView { sandbox, reason }).collect();
    Ok(Json(DrainView { running, saved, not_saved }))
}

pub(super) async fn uncordon(State(app): State<Arc<App>>) -> NoContent {
    app.fleet.uncordon();
    Empty
}
