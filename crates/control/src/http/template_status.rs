//! How far a build is and what it said. The SDKs ask five times a second, each time for the lines after those they have.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use isopod_store::clock::Timestamp;
use isopod_store::{BuildLogQuery, Direction, Level};
use serde_json::{Value, json};

use super::app::App;
use super::auth::Caller;
use super::body::Query;
use super::error::ApiError;
use super::template_build::find_build;
use super::templates::status_text;

const MAX_LINES: i64 = 100;

/// `GET /templates/{id}/builds/{build}/status`
pub(super) async fn status(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path((id, build)): Path<(String, String)>,
    query: Query,
) -> Result<Json<Value>, ApiError> {
    let query = query.known(&["logsOffset", "limit", "level"]);
    let wanted = BuildLogQuery {
        offset: query.number("logsOffset", 0, i64::MAX)?.unwrap_or(0),
        limit: query.number("limit", 0, MAX_LINES)?.unwrap_or(MAX_LINES),
        least: level(&query)?,
        from: None,
        direction: Direction::Forward,
    };
    // First the status: a build that has ended has said everything, so that the last lines are never missed.
    let build = find_build(&app.catalogue, &caller, &id, &build).await?;
    let lines = app.catalogue.store.list_build_lines(&build.id, wanted).await?;
    let messages: Vec<&str> = lines.iter().map(|line| line.message.as_str()).collect();
    let mut answer = json!({
        "templateID": build.template, "buildID": build.id, "status": status_text(build.status),
        "logs": messages, "logEntries": lines,
    });
    if let Some(reason) = &build.reason {
        answer["reason"] = json!({ "message": reason.message });
        if let Some(step) = &reason.step {
            answer["reason"]["step"] = json!(step);
        }
    }
    Ok(Json(answer))
}

/// `GET /templates/{id}/builds/{build}/logs`
pub(super) async fn logs(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path((id, build)): Path<(String, String)>,
    query: Query,
) -> Result<Json<Value>, ApiError> {
    let query = query.known(&["cursor", "limit", "direction", "level"]);
    let direction = match query.text("direction") {
        None | Some("forward") => Direction::Forward,
        Some("backward") => Direction::Backward,
        Some(_) => return Err(ApiError::bad_request("direction must be forward or backward")),
    };
    let wanted = BuildLogQuery {
        offset: 0,
        limit: query.number("limit", 0, MAX_LINES)?.unwrap_or(MAX_LINES),
        least: level(&query)?,
        from: query.number("cursor", 0, i64::MAX)?.map(Timestamp),
        direction,
    };
    let build = find_build(&app.catalogue, &caller, &id, &build).await?;
    Ok(Json(json!({ "logs": app.catalogue.store.list_build_lines(&build.id, wanted).await? })))
}

fn level(query: &Query) -> Result<Level, ApiError> {
    let Some(text) = query.text("level") else { return Ok(Level::Debug) };
    Level::parse(text).ok_or_else(|| ApiError::bad_request(format!("unknown level {text:?}")))
}
