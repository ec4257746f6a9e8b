//! `/api/v1/commands`: the history of commands, newest first.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use isopod_control::http::{ApiError, Caller, Query};
use isopod_store::service::CommandQuery;
use serde_json::{Value, json};

use super::views::command;
use crate::Access;
use crate::Service;
use crate::{Operation, ServiceError};

const PAGE: i64 = 100;

pub(super) async fn list(
    State(service): State<Arc<Service>>,
    caller: Caller,
    query: Query,
) -> Result<Json<Value>, ApiError> {
    let query = query.only(&["sandbox_id", "agent_id", "task_id", "limit", "before"])?;
    let access = Access::from(&caller);
    let limit = query.number("limit", 1, PAGE)?.unwrap_or(50);
    let wanted = CommandQuery {
        team: access.team_filter(),
        sandbox: query.text("sandbox_id").map(str::to_owned),
        agent: access.agent_filter(query.text("agent_id"))?,
        task: query.text("task_id").map(str::to_owned),
        before: query.number("before", 1, i64::MAX)?,
        limit: u32::try_from(limit).unwrap_or(1),
    };
    let rows = service.store.list_commands(&wanted).await?;
    let is_full = i64::try_from(rows.len()).is_ok_and(|count| count == limit);
    let next = rows.last().filter(|_| is_full).map(|last| last.seq);
    let shown: Vec<Value> = rows.iter().map(|row| command(row, false)).collect();
    Ok(Json(json!({ "commands": shown, "next": next })))
}

/// One command, with its output.
pub(super) async fn get(
    State(service): State<Arc<Service>>,
    caller: Caller,
    Path(id): Path<String>,
) -> Result<Json<Value>, ApiError> {
    let not_found = || ServiceError::not_found("command", &id);
    let found = service.store.find_command(&id).await?.ok_or_else(not_found)?;
    let agent = found.row.agent.as_deref();
    Access::from(&caller)
        .check(Operation::Read, &found.row.team, agent)
        .map_err(|denied| denied.error("command", &id))?;
    Ok(Json(command(&found, true)))
}
