//! `/api/v1/commands`: the history of commands, newest first.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use isopod_api::{ApiError, Caller, Param, Query, QueryParams};
use isopod_store::service::CommandQuery;
use serde::Serialize;
use utoipa::ToSchema;

use super::views::{CommandView, command};
use crate::Access;
use crate::Service;
use crate::{Operation, ServiceError};

pub(super) enum ListCommands {}

impl QueryParams for ListCommands {
    const PARAMS: &'static [Param] = &[
        Param::text("sandbox_id"),
        Param::text("agent_id"),
        Param::text("task_id"),
        Param::number("limit", 1, PAGE),
        Param::number("before", 1, i64::MAX).about("where to go on: `next` of the page before"),
    ];
}

#[derive(Serialize, ToSchema)]
#[schema(as = Commands)]
pub(super) struct CommandPage {
    commands: Vec<CommandView>,
    /// Null on the last page.
    next: Option<i64>,
}

const PAGE: i64 = 100;

pub(super) async fn list(
    State(service): State<Arc<Service>>,
    caller: Caller,
    query: Query<ListCommands>,
) -> Result<Json<CommandPage>, ApiError> {
    let access = Access::from(&caller);
    let limit = query.number("limit")?.unwrap_or(50);
    let wanted = CommandQuery {
        team: access.team_filter(),
        sandbox: query.text("sandbox_id").map(str::to_owned),
        agent: access.agent_filter(query.text("agent_id"))?,
        task: query.text("task_id").map(str::to_owned),
        before: query.number("before")?,
        limit: u32::try_from(limit).unwrap_or(1),
    };
    let rows = service.store.list_commands(&wanted).await?;
    let is_full = i64::try_from(rows.len()).is_ok_and(|count| count == limit);
    let next = rows.last().filter(|_| is_full).map(|last| last.seq);
    Ok(Json(CommandPage { commands: rows.into_iter().map(|row| command(row, false)).collect(), next }))
}

/// One command, with its output.
pub(super) async fn get(
    State(service): State<Arc<Service>>,
    caller: Caller,
    Path(id): Path<String>,
) -> Result<Json<CommandView>, ApiError> {
    let not_found = || ServiceError::not_found("command", &id);
    let found = service.store.find_command(&id).await?.ok_or_else(not_found)?;
    let agent = found.row.agent.as_deref();
    Access::from(&caller)
        .check(Operation::Read, &found.row.team, agent)
        .map_err(|denied| denied.error("command", &id))?;
    Ok(Json(command(found, true)))
}
