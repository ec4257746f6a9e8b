//! `GET /sandboxes/{id}`

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use serde_json::Value;

use super::app::App;
use super::auth::Caller;
use super::error::ApiError;
use super::sandbox_views::{ToldDomain, detail};

pub(super) async fn get(
    State(app): State<Arc<App>>,
    caller: Caller,
    domain: ToldDomain,
    Path(id): Path<String>,
) -> Result<Json<Value>, ApiError> {
    let sandbox = caller.sandbox(&app.fleet, &id).await?;
    Ok(Json(detail(&domain.0, &sandbox.view().row)))
}
