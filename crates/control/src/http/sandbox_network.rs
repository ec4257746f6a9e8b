//! `PUT /sandboxes/{id}/network`

use std::sync::Arc;

use axum::extract::{Path, State};
use isopod_api::{ApiError, Caller, Empty, JsonBody, NoContent};

use super::app::App;
use super::find_sandbox::live_sandbox;
use super::network_config::NetworkUpdate;

pub(super) async fn set_network(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path(id): Path<String>,
    body: JsonBody<NetworkUpdate>,
) -> Result<NoContent, ApiError> {
    let sandbox = live_sandbox(&app.fleet, &caller, &id).await?;
    let update = body.parse()?;
    let allow_internet = update.allow_internet_access;
    sandbox.set_network(allow_internet, update.checked(&app.settings.sandbox_networks)?).await?;
    Ok(Empty)
}
