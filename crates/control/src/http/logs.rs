//! Logs of a sandbox, also after its end.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use isopod_store::clock::Timestamp;
use isopod_store::{Direction, Level, LogQuery};
use isopod_wire::SandboxId;
use serde_json::{Value, json};

use super::app::App;
use super::auth::Caller;
use super::body::Query;
use super::error::ApiError;
use crate::lifecycle::Fleet;

const DEFAULT_LIMIT: u32 = 1000;

/// `GET /sandboxes/{id}/logs`
pub(super) async fn list_v1(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path(id): Path<String>,
    query: Query,
) -> Result<Json<Value>, ApiError> {
    let sandbox = caller.known_sandbox(&app.fleet, &id).await?;
    let query = query.known(&["start", "limit"]);
    let wanted = LogQuery {
        from: query.number("start", 0, i64::MAX)?.map(Timestamp),
        direction: Direction::Forward,
        limit: limit(&query)?,
        least: Level::Debug,
        search: None,
    };
    fetch(&app.fleet, &sandbox).await;
    let entries = app.fleet.store.list_logs(&sandbox, &wanted).await?;
    let line = |entry: &isopod_store::LogLine| {
        let line = json!({ "level": entry.level, "message": entry.message, "fields": entry.fields });
        json!({ "timestamp": entry.timestamp, "line": line.to_string() })
    };
    let lines: Vec<Value> = entries.iter().map(line).collect();
    Ok(Json(json!({ "logs": lines, "logEntries": entries })))
}

/// `GET /v2/sandboxes/{id}/logs`
pub(super) async fn list_v2(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path(id): Path<String>,
    query: Query,
) -> Result<Json<Value>, ApiError> {
    let sandbox = caller.known_sandbox(&app.fleet, &id).await?;
    let query = query.known(&["cursor", "limit", "direction", "level", "search"]);
    let direction = match query.text("direction") {
        None | Some("forward") => Direction::Forward,
        Some("backward") => Direction::Backward,
        Some(_) => return Err(ApiError::bad_request("direction must be forward or backward")),
    };
    let level = query.text("level").map(|text| Level::parse(text).ok_or(text)).transpose();
    let wanted = LogQuery {
        from: query.number("cursor", 0, i64::MAX)?.map(Timestamp),
        direction,
        limit: limit(&query)?,
        least: level.map_err(|text| ApiError::bad_request(format!("unknown level {text:?}")))?.unwrap_or(Level::Debug),
        search: query.text("search").map(str::to_owned),
    };
    fetch(&app.fleet, &sandbox).await;
    Ok(Json(json!({ "logs": app.fleet.store.list_logs(&sandbox, &wanted).await? })))
}

/// The log has everything that was printed until it was asked for.
async fn fetch(fleet: &Fleet, id: &SandboxId) {
    if let Some(sandbox) = fleet.find(id)
        && let Some(life) = &sandbox.view().life
    {
        fleet.fetch_output(id, life).await;
    }
}

fn limit(query: &Query) -> Result<u32, ApiError> {
    let given = query.number("limit", 0, i64::from(DEFAULT_LIMIT))?;
    Ok(given.and_then(|number| u32::try_from(number).ok()).unwrap_or(DEFAULT_LIMIT))
}
