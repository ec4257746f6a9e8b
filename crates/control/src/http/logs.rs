//! The logs of a sandbox, also after its end.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use isopod_api::{ApiError, Caller, Param, Query, QueryParams};
use isopod_store::clock::Timestamp;
use isopod_store::{Direction, Level, LogLine, LogQuery};
use isopod_wire::SandboxId;
use serde::Serialize;
use serde_json::json;
use utoipa::ToSchema;

use super::app::App;
use super::find_sandbox::known_sandbox;
use crate::lifecycle::Fleet;

pub(super) enum ListV1 {}

impl QueryParams for ListV1 {
    const IGNORES_UNKNOWN: bool = true;
    const PARAMS: &'static [Param] = &[Param::number("start", 0, i64::MAX).about("milliseconds since 1970"), LIMIT];
}

pub(super) enum ListV2 {}

impl QueryParams for ListV2 {
    const IGNORES_UNKNOWN: bool = true;
    const PARAMS: &'static [Param] = &[
        Param::number("cursor", 0, i64::MAX).about("milliseconds since 1970"),
        LIMIT,
        Param::one_of("direction", &["forward", "backward"]),
        Param::one_of("level", &["debug", "info", "warn", "error"]).about("the minimum level"),
        Param::text("search"),
    ];
}

/// The lines in the formats of both versions of E2B's API.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = SandboxLogs)]
pub(super) struct LogsV1 {
    logs: Vec<PlainLine>,
    log_entries: Vec<LogLine>,
}

#[derive(Serialize, ToSchema)]
#[schema(as = SandboxLog)]
struct PlainLine {
    timestamp: Timestamp,
    /// A JSON object.
    line: String,
}

#[derive(Serialize, ToSchema)]
#[schema(as = SandboxLogsV2)]
pub(super) struct LogsV2 {
    logs: Vec<LogLine>,
}

const LIMIT: Param = Param::number("limit", 0, DEFAULT_LIMIT as i64);
const DEFAULT_LIMIT: u32 = 1000;

/// `GET /sandboxes/{id}/logs`
pub(super) async fn list_v1(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path(id): Path<String>,
    query: Query<ListV1>,
) -> Result<Json<LogsV1>, ApiError> {
    let sandbox = known_sandbox(&app.fleet, &caller, &id).await?;
    let wanted = LogQuery {
        from: query.number("start")?.map(Timestamp),
        direction: Direction::Forward,
        limit: limit(&query)?,
        least: Level::Debug,
        search: None,
    };
    fetch(&app.fleet, &sandbox).await;
    let entries = app.fleet.store.list_logs(&sandbox, &wanted).await?;
    let line = |entry: &LogLine| {
        let line = json!({ "level": entry.level, "message": entry.message, "fields": entry.fields });
        PlainLine { timestamp: entry.timestamp, line: line.to_string() }
    };
    Ok(Json(LogsV1 { logs: entries.iter().map(line).collect(), log_entries: entries }))
}

/// `GET /v2/sandboxes/{id}/logs`
pub(super) async fn list_v2(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path(id): Path<String>,
    query: Query<ListV2>,
) -> Result<Json<LogsV2>, ApiError> {
    let sandbox = known_sandbox(&app.fleet, &caller, &id).await?;
    let direction = match query.text("direction") {
        None | Some("forward") => Direction::Forward,
        Some("backward") => Direction::Backward,
        Some(_) => return Err(ApiError::bad_request("direction must be forward or backward")),
    };
    let level = query.text("level").map(|text| Level::parse(text).ok_or(text)).transpose();
    let wanted = LogQuery {
        from: query.number("cursor")?.map(Timestamp),
        direction,
        limit: limit(&query)?,
        least: level.map_err(|text| ApiError::bad_request(format!("unknown level {text:?}")))?.unwrap_or(Level::Debug),
        search: query.text("search").map(str::to_owned),
    };
    fetch(&app.fleet, &sandbox).await;
    Ok(Json(LogsV2 { logs: app.fleet.store.list_logs(&sandbox, &wanted).await? }))
}

/// Fetches pending output, so that the log has everything printed up to now.
async fn fetch(fleet: &Fleet, id: &SandboxId) {
    if let Some(sandbox) = fleet.find(id)
        && let Some(life) = &sandbox.view().life
    {
        fleet.fetch_output(id, life).await;
    }
}

fn limit<P: QueryParams>(query: &Query<P>) -> Result<u32, ApiError> {
    let given = query.number("limit")?;
    Ok(given.and_then(|number| u32::try_from(number).ok()).unwrap_or(DEFAULT_LIMIT))
}
