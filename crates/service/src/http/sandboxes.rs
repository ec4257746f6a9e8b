//! Shows, lists, ends, pauses and resumes sandboxes.

use std::sync::Arc;

use axum::extract::{Path, State};
use axum::{Extension, Json};
use isopod_api::{ApiError, Caller, Empty, NoContent, Param, Query, QueryParams, audit::Subject};
use isopod_store::clock::Timestamp;
use isopod_store::service::{ServiceQuery, Status};
use serde::Serialize;
use utoipa::ToSchema;

use super::views::{SandboxView, ShownSandbox, sandbox, sandbox_answer};
use crate::Access;
use crate::Operation;
use crate::Service;

pub(super) enum ListSandboxes {}

impl QueryParams for ListSandboxes {
    const PARAMS: &'static [Param] = &[
        Param::text("agent_id"),
        Param::text("task_id"),
        Param::one_of("status", &["creating", "running", "paused", "stopped", "error"]),
        Param::flag("include_ended"),
        Param::number("limit", 1, PAGE),
        Param::text("before").about("where to go on: `next` of the page before"),
    ];
}

#[derive(Serialize, ToSchema)]
#[schema(as = ServiceSandboxes)]
pub(super) struct SandboxPage {
    sandboxes: Vec<SandboxView>,
    /// Null on the last page.
    next: Option<String>,
}

const PAGE: i64 = 100;

/// `GET /api/v1/sandboxes/{id}`: the current state, from the backend.
pub(super) async fn get(
    State(service): State<Arc<Service>>,
    caller: Caller,
    Path(id): Path<String>,
) -> Result<ShownSandbox, ApiError> {
    let row = service.find(&Access::from(&caller), Operation::Read, &id).await?;
    let row = service.settled(row).await?;
    Ok(sandbox_answer(&row))
}

/// `DELETE /api/v1/sandboxes/{id}`: succeeds also if it is already gone.
pub(super) async fn destroy(
    State(service): State<Arc<Service>>,
    caller: Caller,
    Path(id): Path<String>,
) -> Result<(Extension<Subject>, NoContent), ApiError> {
    let row = service.destroy(&Access::from(&caller), &id).await?;
    Ok((Extension(Subject::from(&row)), Empty))
}

pub(super) async fn pause(
    State(service): State<Arc<Service>>,
    caller: Caller,
    Path(id): Path<String>,
) -> Result<ShownSandbox, ApiError> {
    let row = service.pause(&Access::from(&caller), &id).await?;
    Ok(sandbox_answer(&row))
}

pub(super) async fn resume(
    State(service): State<Arc<Service>>,
    caller: Caller,
    Path(id): Path<String>,
) -> Result<ShownSandbox, ApiError> {
    let row = service.resume(&Access::from(&caller), &id).await?;
    Ok(sandbox_answer(&row))
}

/// `GET /api/v1/sandboxes`: live sandboxes of the caller's team. An admin's key sees all teams.
pub(super) async fn list(
    State(service): State<Arc<Service>>,
    caller: Caller,
    query: Query<ListSandboxes>,
) -> Result<Json<SandboxPage>, ApiError> {
    let access = Access::from(&caller);
    let status = match query.text("status") {
        None => None,
        Some(text) => Some(
            Status::parse(text)
                .ok_or_else(|| ApiError::bad_request("status must be creating, running, paused, stopped or error"))?,
        ),
    };
    let limit = query.number("limit")?.unwrap_or(PAGE);
    let wanted = ServiceQuery {
        team: access.team_filter(),
        agent: access.agent_filter(query.text("agent_id"))?,
        task: query.text("task_id").map(str::to_owned),
        status,
        with_gone: query.flag("include_ended")? || matches!(status, Some(Status::Stopped | Status::Error)),
        before: query.text("before").map(parse_cursor).transpose()?,
        limit: u32::try_from(limit).unwrap_or(1),
    };
    let rows = service.store.list_service_sandboxes(&wanted).await?;
    let is_full = i64::try_from(rows.len()).is_ok_and(|count| count == limit);
    let next = rows.last().filter(|_| is_full).map(|row| format!("{}_{}", row.created_at.0, row.id));
    Ok(Json(SandboxPage { sandboxes: rows.iter().map(sandbox).collect(), next }))
}

fn parse_cursor(text: &str) -> Result<(Timestamp, String), ApiError> {
    let parse = || {
        let (at, id) = text.split_once('_')?;
        Some((Timestamp(at.parse().ok()?), id.to_owned()))
    };
    parse().ok_or_else(|| ApiError::bad_request("before is not a cursor from this server"))
}
