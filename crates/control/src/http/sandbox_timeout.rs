//! `POST /sandboxes/{id}/timeout` and `POST /sandboxes/{id}/refreshes`

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Path, State};
use isopod_api::{ApiError, Caller, Empty, JsonBody, NoContent};
use serde::Deserialize;
use utoipa::ToSchema;

use super::app::App;
use super::find_sandbox::live_sandbox;
use super::new_sandbox::checked_timeout;
use crate::lifecycle::{ActError, Refusal};

#[derive(Deserialize, ToSchema)]
#[schema(as = Timeout)]
pub(super) struct TimeoutBody {
    /// Seconds from now.
    #[schema(minimum = 0, maximum = 86400)]
    timeout: i64,
}

#[derive(Deserialize, ToSchema)]
#[schema(as = Refresh)]
pub(super) struct RefreshBody {
    /// The minimum number of seconds from now.
    #[schema(minimum = 0, maximum = 86400)]
    duration: Option<i64>,
}

const DEFAULT_REFRESH: Duration = Duration::from_secs(15);

pub(super) async fn set_timeout(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path(id): Path<String>,
    body: JsonBody<TimeoutBody>,
) -> Result<NoContent, ApiError> {
    let sandbox = live_sandbox(&app.fleet, &caller, &id).await?;
    let body = body.parse()?;
    let timeout = checked_timeout(Some(body.timeout), &app.fleet)?.unwrap_or_default();
    sandbox.set_timeout(timeout).await.map_err(|error| running_only(error, &id))?;
    Ok(Empty)
}

pub(super) async fn refresh(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path(id): Path<String>,
    body: JsonBody<RefreshBody>,
) -> Result<NoContent, ApiError> {
    let sandbox = live_sandbox(&app.fleet, &caller, &id).await?;
    let body = body.parse()?;
    let duration = checked_timeout(body.duration, &app.fleet)?.unwrap_or(DEFAULT_REFRESH);
    sandbox.extend(duration).await.map_err(|error| running_only(error, &id))?;
    Ok(Empty)
}

/// These two routes apply only to running sandboxes.
fn running_only(error: ActError, id: &str) -> ApiError {
    match error {
        ActError::Refused(Refusal::Paused) => ApiError::sandbox_not_found(id),
        error => error.into(),
    }
}
