//! `POST /sandboxes/{id}/rollback`: put a running sandbox back to a snapshot of it. Not part of E2B's API.

use std::sync::Arc;

use axum::extract::{Path, State};
use isopod_api::{ApiError, Caller, Empty, JsonBody, NoContent};
use serde::Deserialize;
use utoipa::ToSchema;

use super::app::App;
use super::find_sandbox::live_sandbox;
use super::sandbox_snapshot::done_perhaps;
use crate::templates::FindError;

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Rollback)]
pub(super) struct RollbackBody {
    /// A snapshot of this sandbox.
    #[serde(rename = "snapshotID")]
    snapshot_id: String,
}

pub(super) async fn rollback(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path(id): Path<String>,
    body: JsonBody<RollbackBody>,
) -> Result<NoContent, ApiError> {
    let asked = body.parse()?.snapshot_id;
    let sandbox = live_sandbox(&app.fleet, &caller, &id).await?;
    let found = app.catalogue.find_snapshot(&caller.team, &asked).await.map_err(|error| match error {
        FindError::NotFound(_) => ApiError::not_found(format!("snapshot '{asked}' not found")),
        error => error.into(),
    })?;
    let of_it = found.snapshot.filter(|source| source.sandbox == *sandbox.id());
    let source = of_it.ok_or_else(|| {
        ApiError::bad_request(format!("'{asked}' is a snapshot of another sandbox; create a sandbox from it instead"))
    })?;
    if source.has_memory {
        app.fleet.check_saves_memory().await?;
    }
    sandbox.rollback(source).await.map_err(|error| done_perhaps(error.into()))?;
    Ok(Empty)
}
