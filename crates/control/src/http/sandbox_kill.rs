//! `DELETE /sandboxes/{id}`

use std::sync::Arc;

use axum::extract::{Path, State};
use isopod_api::{ApiError, Caller, Empty, NoContent};

use super::app::App;
use super::find_sandbox::live_sandbox;

pub(super) async fn kill(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path(id): Path<String>,
) -> Result<NoContent, ApiError> {
    live_sandbox(&app.fleet, &caller, &id).await?.kill().await?;
    Ok(Empty)
}
