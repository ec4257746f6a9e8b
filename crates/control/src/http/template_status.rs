//! The status and the logs of a build. The SDKs poll five times a second, each time for the lines after those they
//! have.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use isopod_api::{ApiError, Caller, Param, Query, QueryParams};
use isopod_store::clock::Timestamp;
use isopod_store::{BuildLine, BuildLogQuery, BuildReason, Direction, Level};
use serde::Serialize;
use utoipa::ToSchema;

use super::app::App;
use super::template_build::find_build;
use super::templates::ShownBuildStatus;

pub(super) enum Status {}

impl QueryParams for Status {
    const IGNORES_UNKNOWN: bool = true;
    const PARAMS: &'static [Param] =
        &[Param::number("logsOffset", 0, i64::MAX).about("the number of lines to skip"), LIMIT, LEVEL];
}

pub(super) enum Logs {}

impl QueryParams for Logs {
    const IGNORES_UNKNOWN: bool = true;
    const PARAMS: &'static [Param] = &[
        Param::number("cursor", 0, i64::MAX).about("milliseconds since 1970"),
        LIMIT,
        Param::one_of("direction", &["forward", "backward"]),
        LEVEL,
    ];
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = BuildProgress)]
pub(super) struct Progress {
    #[serde(rename = "templateID")]
    template_id: String,
    #[serde(rename = "buildID")]
    build_id: String,
    status: ShownBuildStatus,
    logs: Vec<String>,
    log_entries: Vec<BuildLine>,
    /// Why the build failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    reason: Option<Reason>,
}

#[derive(Serialize, ToSchema)]
#[schema(as = BuildReason)]
struct Reason {
    message: String,
    /// `base`, `finalize`, or the number of a step, starting at 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    step: Option<String>,
}

#[derive(Serialize, ToSchema)]
#[schema(as = BuildLogs)]
pub(super) struct Lines {
    logs: Vec<BuildLine>,
}

const LIMIT: Param = Param::number("limit", 0, MAX_LINES);
const LEVEL: Param = Param::one_of("level", &["debug", "info", "warn", "error"]).about("the minimum level");
const MAX_LINES: i64 = 100;

/// `GET /templates/{id}/builds/{build}/status`
pub(super) async fn status(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path((id, build)): Path<(String, String)>,
    query: Query<Status>,
) -> Result<Json<Progress>, ApiError> {
    let wanted = BuildLogQuery {
        offset: query.number("logsOffset")?.unwrap_or(0),
        limit: query.number("limit")?.unwrap_or(MAX_LINES),
        least: level(&query)?,
        from: None,
        direction: Direction::Forward,
    };
    // Read the status first: a build that has ended writes no more lines, so the last lines are never missed.
    let build = find_build(&app.catalogue, &caller, &id, &build).await?;
    let lines = app.catalogue.store.list_build_lines(&build.id, wanted).await?;
    Ok(Json(Progress {
        template_id: build.template,
        build_id: build.id,
        status: build.status.into(),
        logs: lines.iter().map(|line| line.message.clone()).collect(),
        log_entries: lines,
        reason: build.reason.map(|BuildReason { message, step }| Reason { message, step }),
    }))
}

/// `GET /templates/{id}/builds/{build}/logs`
pub(super) async fn logs(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path((id, build)): Path<(String, String)>,
    query: Query<Logs>,
) -> Result<Json<Lines>, ApiError> {
    let direction = match query.text("direction") {
        None | Some("forward") => Direction::Forward,
        Some("backward") => Direction::Backward,
        Some(_) => return Err(ApiError::bad_request("direction must be forward or backward")),
    };
    let wanted = BuildLogQuery {
        offset: 0,
        limit: query.number("limit")?.unwrap_or(MAX_LINES),
        least: level(&query)?,
        from: query.number("cursor")?.map(Timestamp),
        direction,
    };
    let build = find_build(&app.catalogue, &caller, &id, &build).await?;
    Ok(Json(Lines { logs: app.catalogue.store.list_build_lines(&build.id, wanted).await? }))
}

fn level<P: QueryParams>(query: &Query<P>) -> Result<Level, ApiError> {
    let Some(text) = query.text("level") else { return Ok(Level::Debug) };
    Level::parse(text).ok_or_else(|| ApiError::bad_request(format!("unknown level {text:?}")))
}
