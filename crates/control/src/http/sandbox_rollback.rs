//! `POST /sandboxes/{id}/rollback`: put a running sandbox back to a snapshot of it. Not part of E2B's API.

use std::sync::Arc;

use axum::extract::{Path, State};
use isopod_api::{ApiError, Caller, Empty, JsonBody, NoContent};
use serde::Deserialize;
use utoipa::ToSchema;

use super::app::App;
use super::errors::advise_files_only;
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
    /// Whether to restore the snapshot's memory, if it has any. With `false`, the sandbox starts from its files alone.
    memory: Option<bool>,
}

pub(super) async fn rollback(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path(id): Path<String>,
    body: JsonBody<RollbackBody>,
) -> Result<NoContent, ApiError> {
    let RollbackBody { snapshot_id: asked, memory } = body.parse()?;
    let sandbox = live_sandbox(&app.fleet, &caller, &id).await?;
    let found = app.catalogue.find_snapshot(&caller.team, &asked).await.map_err(|error| match error {
        FindError::NotFound(_) => ApiError::not_found(format!("snapshot '{asked}' not found")),
        error => error.into(),
    })?;
    let of_it = found.snapshot.filter(|source| source.sandbox == *sandbox.id());
    let mut source = of_it.ok_or_else(|| {
        ApiError::bad_request(format!("'{asked}' is a snapshot of another sandbox; create a sandbox from it instead"))
    })?;
    source.has_memory &= memory.unwrap_or(true);
    let put_back = match source.has_memory {
        true => app.fleet.check_saves_memory().await,
        false => Ok(()),
    };
    let put_back = match put_back {
        Ok(()) => sandbox.rollback(source).await,
        Err(refused) => Err(refused),
    };
    put_back.map_err(|error| advise_files_only(done_perhaps(error.into())))?;
    Ok(Empty)
}
