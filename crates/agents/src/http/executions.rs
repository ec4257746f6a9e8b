//! `/api/v1/executions`: the files of an execution as a whole. Single files are in `execution_files`.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::{Path, State};
use isopod_api::{ApiError, Caller, Empty, JsonBody, Listing, NoContent, claimed_execution, known_execution};
use isopod_control::http::file_store;
use isopod_control::is_used;
use isopod_files::{Files, Key, StorageInfo, blocking};
use isopod_store::clock::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::Agents;

/// An execution in a list.
#[derive(Serialize, ToSchema)]
#[schema(as = ListedExecution)]
pub(super) struct ExecutionView {
    execution_id: String,
    created_at: Timestamp,
    used_at: Timestamp,
}

pub(super) async fn list(State(app): State<Arc<Agents>>, caller: Caller) -> Result<Listing<ExecutionView>, ApiError> {
    let executions = app.fleet.store.list_executions(&caller.team).await?;
    let shown = executions.into_iter().map(|(execution_id, created_at, used_at)| ExecutionView {
        execution_id,
        created_at,
        used_at,
    });
    Ok(Listing(shown.collect()))
}

/// Creates the execution's directories and returns their state.
pub(super) async fn open(
    State(app): State<Arc<Agents>>,
    caller: Caller,
    Path(id): Path<String>,
) -> Result<Json<StorageInfo>, ApiError> {
    let files = claimed_files(&app, &caller, &id).await?;
    let info = blocking(move || {
        files.ensure()?;
        files.info()
    });
    Ok(Json(info.await?))
}

pub(super) async fn info(
    State(app): State<Arc<Agents>>,
    caller: Caller,
    Path(id): Path<String>,
) -> Result<Json<StorageInfo>, ApiError> {
    let files = known_files(&app, &caller, &id).await?;
    Ok(Json(blocking(move || files.info()).await?))
}

/// Removes all files of the execution. Its id is then free for any team.
pub(super) async fn remove(
    State(app): State<Arc<Agents>>,
    caller: Caller,
    Path(id): Path<String>,
) -> Result<NoContent, ApiError> {
    let execution = known_execution(&app.fleet.store, &caller, &id).await?;
    let files = file_store(app.files.as_ref())?.files(execution.clone()).await?;
    app.fleet.store.begin_removing_execution(&execution, Timestamp(i64::MAX)).await?;
    // Check this after no new sandbox can use the execution. A sandbox that kept the mount would see the files of the
    // id's next owner.
    if is_used(&app.fleet, &caller.team, &execution).await? {
        app.fleet.store.keep_execution(&execution).await?;
        return Err(ApiError::conflict(format!(
            "a running sandbox uses the files of execution \"{execution}\"; end it first"
        )));
    }
    blocking(move || files.remove_everything()).await?;
    app.fleet.store.forget_execution(&execution).await?;
    Ok(Empty)
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Cleanup)]
pub(super) struct CleanupBody {
    #[serde(default = "a_day")]
    #[schema(minimum = 0, default = 24)]
    older_than_hours: f64,
}

fn a_day() -> f64 {
    24.0
}

#[derive(Serialize, ToSchema)]
#[schema(as = CleanedUp)]
pub(super) struct Removed {
    /// How many files.
    removed: u64,
}

/// Removes temporary files that were not written for so long; zero means all.
pub(super) async fn cleanup(
    State(app): State<Arc<Agents>>,
    caller: Caller,
    Path(id): Path<String>,
    body: JsonBody<CleanupBody>,
) -> Result<Json<Removed>, ApiError> {
    let CleanupBody { older_than_hours } = body.parse()?;
    let wrong = || ApiError::bad_request("older_than_hours must be a number of hours, 0 or more");
    let older_than = Duration::try_from_secs_f64(older_than_hours * 3600.0).map_err(|_| wrong())?;
    let files = known_files(&app, &caller, &id).await?;
    let removed = blocking(move || files.clean_temp(older_than)).await?;
    Ok(Json(Removed { removed }))
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Transfer)]
pub(super) struct TransferBody {
    from: String,
    to: String,
}

/// A file under its new key.
#[derive(Serialize, ToSchema)]
#[schema(as = TransferredFile)]
pub(super) struct Transferred {
    key: String,
    size: u64,
}

pub(super) async fn copy(
    State(app): State<Arc<Agents>>,
    caller: Caller,
    Path(id): Path<String>,
    body: JsonBody<TransferBody>,
) -> Result<Json<Transferred>, ApiError> {
    let (files, from, to) = transfer(&app, &caller, &id, body).await?;
    let key = to.as_str().to_owned();
    let size = blocking(move || files.copy(&from, to)).await?;
    Ok(Json(Transferred { key, size }))
}

pub(super) async fn rename(
    State(app): State<Arc<Agents>>,
    caller: Caller,
    Path(id): Path<String>,
    body: JsonBody<TransferBody>,
) -> Result<Json<Transferred>, ApiError> {
    let (files, from, to) = transfer(&app, &caller, &id, body).await?;
    let key = to.as_str().to_owned();
    let size = blocking(move || files.rename(&from, &to)).await?;
    Ok(Json(Transferred { key, size }))
}

async fn transfer(
    app: &Agents,
    caller: &Caller,
    id: &str,
    body: JsonBody<TransferBody>,
) -> Result<(Files, Key, Key), ApiError> {
    let TransferBody { from, to } = body.parse()?;
    let (from, to) = (Key::parse(&from)?, Key::parse_new(&to)?);
    Ok((known_files(app, caller, id).await?, from, to))
}

/// The files of an execution that the caller's team already has.
pub(super) async fn known_files(app: &Agents, caller: &Caller, id: &str) -> Result<Files, ApiError> {
    let execution = known_execution(&app.fleet.store, caller, id).await?;
    Ok(file_store(app.files.as_ref())?.files(execution).await?)
}

/// The files of an execution. Claims it for the caller's team, unless another team has it.
pub(super) async fn claimed_files(app: &Agents, caller: &Caller, id: &str) -> Result<Files, ApiError> {
    let store = file_store(app.files.as_ref())?;
    let execution = claimed_execution(&app.fleet.store, caller, id).await?;
    Ok(store.files(execution).await?)
}
