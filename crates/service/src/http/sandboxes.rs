//! Shows, lists, ends, pauses and resumes sandboxes.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use axum::response::{IntoResponse as _, Response};
use http::StatusCode;
use isopod_control::audit::Subject;
use isopod_control::http::{ApiError, Caller, Query};
use isopod_store::clock::Timestamp;
use isopod_store::service::{ServiceQuery, Status};
use serde_json::{Value, json};

use super::views::{sandbox, sandbox_answer};
use crate::Access;
use crate::Operation;
use crate::Service;

const PAGE: i64 = 100;

/// `GET /api/v1/sandboxes/{id}`: the current state, from the backend.
pub(super) async fn get(
    State(service): State<Arc<Service>>,
    caller: Caller,
    Path(id): Path<String>,
) -> Result<Response, ApiError> {
    let row = service.find(&Access::from(&caller), Operation::Read, &id).await?;
    let row = service.settled(row).await?;
    Ok(sandbox_answer(StatusCode::OK, &row))
}

/// `DELETE /api/v1/sandboxes/{id}`: succeeds also if it is already gone.
pub(super) async fn destroy(
    State(service): State<Arc<Service>>,
    caller: Caller,
    Path(id): Path<String>,
) -> Result<Response, ApiError> {
    let row = service.destroy(&Access::from(&caller), &id).await?;
    let mut response = StatusCode::NO_CONTENT.into_response();
    response.extensions_mut().insert(Subject::from(&row));
    Ok(response)
}

pub(super) async fn pause(
    State(service): State<Arc<Service>>,
    caller: Caller,
    Path(id): Path<String>,
) -> Result<Response, ApiError> {
    let row = service.pause(&Access::from(&caller), &id).await?;
    Ok(sandbox_answer(StatusCode::OK, &row))
}

pub(super) async fn resume(
    State(service): State<Arc<Service>>,
    caller: Caller,
    Path(id): Path<String>,
) -> Result<Response, ApiError> {
    let row = service.resume(&Access::from(&caller), &id).await?;
    Ok(sandbox_answer(StatusCode::OK, &row))
}

/// `GET /api/v1/sandboxes`: live sandboxes of the caller's team. An admin's key sees all teams.
pub(super) async fn list(
    State(service): State<Arc<Service>>,
    caller: Caller,
    query: Query,
) -> Result<Json<Value>, ApiError> {
    let query = query.only(&["agent_id", "task_id", "status", "include_ended", "limit", "before"])?;
    let access = Access::from(&caller);
    let status = match query.text("status") {
        None => None,
        Some(text) => Some(
            Status::parse(text)
                .ok_or_else(|| ApiError::bad_request("status must be creating, running, paused, stopped or error"))?,
        ),
    };
    let limit = query.number("limit", 1, PAGE)?.unwrap_or(PAGE);
    let wanted = ServiceQuery {
        team: access.team_filter(),
        agent: access.agent_filter(query.text("agent_id"))?,
        task: query.text("task_id").map(str::to_owned),
        status,
        with_gone: flag(&query, "include_ended")? || matches!(status, Some(Status::Stopped | Status::Error)),
        before: query.text("before").map(parse_cursor).transpose()?,
        limit: u32::try_from(limit).unwrap_or(1),
    };
    let rows = service.store.list_service_sandboxes(&wanted).await?;
    let is_full = i64::try_from(rows.len()).is_ok_and(|count| count == limit);
    let next = rows.last().filter(|_| is_full).map(|row| format!("{}_{}", row.created_at.0, row.id));
    Ok(Json(json!({ "sandboxes": rows.iter().map(sandbox).collect::<Vec<_>>(), "next": next })))
}

pub(super) fn flag(query: &Query, name: &str) -> Result<bool, ApiError> {
    match query.text(name) {
        None | Some("false") => Ok(false),
        Some("true") => Ok(true),
        Some(_) => Err(ApiError::bad_request(format!("{name} must be true or false"))),
    }
}

fn parse_cursor(text: &str) -> Result<(Timestamp, String), ApiError> {
    let parse = || {
        let (at, id) = text.split_once('_')?;
        Some((Timestamp(at.parse().ok()?), id.to_owned()))
    };
    parse().ok_or_else(|| ApiError::bad_request("before is not a cursor from this server"))
}
