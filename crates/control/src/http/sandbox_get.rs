//! `GET /sandboxes/{id}`

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use axum::response::IntoResponse as _;
use isopod_api::{ApiError, Caller, Prepared};

use super::app::App;
use super::find_sandbox::live_sandbox;
use super::sandbox_views::{Detail, SandboxDomain, detail};

pub(super) async fn get(
    State(app): State<Arc<App>>,
    caller: Caller,
    domain: SandboxDomain,
    Path(id): Path<String>,
) -> Result<Prepared<Json<Detail<'static>>>, ApiError> {
    let sandbox = live_sandbox(&app.fleet, &caller, &id).await?;
    Ok(Prepared::new(Json(detail(&domain.0, &sandbox.view().row)).into_response()))
}
