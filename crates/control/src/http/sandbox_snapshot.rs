//! `POST /sandboxes/{id}/snapshots`: take a snapshot of a running sandbox.

use std::sync::Arc;

use axum::extract::{Path, State};
use http::StatusCode;
use isopod_api::{ApiError, Caller, Created, JsonBody};
use serde::Deserialize;
use utoipa::ToSchema;

use super::app::App;
use super::find_sandbox::live_sandbox;
use super::snapshot_views::{SnapshotView, own_reference, shown};
use crate::lifecycle::{CHECKPOINT_PREFIX, WantedSnapshot};
use crate::templates::{DEFAULT_TAG, parse_tag};

#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = NewSnapshot)]
pub(super) struct SnapshotBody {
    /// `name` or `name:tag`. A later snapshot with the same name takes its place.
    name: Option<String>,
    /// Whether to keep the processes and their memory too. True by default.
    memory: Option<bool>,
}

pub(super) async fn snapshot(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path(id): Path<String>,
    body: JsonBody<SnapshotBody>,
) -> Result<Created<SnapshotView>, ApiError> {
    let body = body.parse()?;
    let (name, tag) = match body.name.as_deref().map(|name| own_reference(&caller, name)).transpose()? {
        Some(reference) if reference.name.starts_with(CHECKPOINT_PREFIX) => {
            return Err(ApiError::bad_request(format!(
                "names that begin with '{CHECKPOINT_PREFIX}' are the server's own"
            )));
        }
        Some(reference) => (Some(reference.name.clone()), parse_tag(reference.tag())?),
        None => (None, DEFAULT_TAG.to_owned()),
    };
    let wanted = WantedSnapshot { name, tag, with_memory: body.memory.unwrap_or(true) };
    let sandbox = live_sandbox(&app.fleet, &caller, &id).await?;
    let taken = app.fleet.take_snapshot(sandbox, wanted).await;
    Ok(Created(shown(taken.map_err(|error| done_perhaps(error.into()))?)))
}

/// After a timeout nobody knows whether it was done, so clients must not simply repeat it.
pub(super) fn done_perhaps(error: ApiError) -> ApiError {
    match error.status() {
        StatusCode::GATEWAY_TIMEOUT => error.without_retry(),
        _ => error,
    }
}
