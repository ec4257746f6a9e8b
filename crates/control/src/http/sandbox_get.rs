//! `GET /sandboxes/{id}`

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use axum::response::IntoResponse as _;

use super::answers::Prepared;
use super::app::App;
use super::auth::Caller;
use super::error::ApiError;
use super::sandbox_views::{Detail, ToldDomain, detail};

pub(super) async fn get(
    State(app): State<Arc<App>>,
    caller: Caller,
    domain: ToldDomain,
    Path(id): Path<String>,
) -> Result<Prepared<Json<Detail<'static>>>, ApiError> {
    let sandbox = caller.sandbox(&app.fleet, &id).await?;
    Ok(Prepared::new(Json(detail(&domain.0, &sandbox.view().row)).into_response()))
}
