//! `GET /api/v1/usage`: resource usage by task, agent, sandbox or run.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use isopod_api::{ApiError, Caller, Param, Query, QueryParams};
use isopod_store::clock::Timestamp;
use isopod_store::service::{UsageGroup, UsageRow};
use serde::Serialize;
use utoipa::ToSchema;

use super::audit::parse_time;
use crate::Access;
use crate::Service;
use crate::ServiceError;

pub(super) enum Report {}

impl QueryParams for Report {
    const PARAMS: &'static [Param] = &[
        Param::one_of("group_by", &["task", "agent", "sandbox", "run"]),
        Param::time("from"),
        Param::time("to"),
        Param::text("agent_id"),
    ];
}

#[derive(Serialize, ToSchema)]
#[schema(as = UsageReport)]
pub(super) struct Reported {
    usage: Vec<Usage>,
}

/// One of the four names is there, by what the report is grouped by. It is null for all that has none.
#[derive(Default, Serialize, ToSchema)]
pub(super) struct Usage {
    #[serde(skip_serializing_if = "Option::is_none")]
    task_id: Option<Option<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    agent_id: Option<Option<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sandbox_id: Option<Option<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    run: Option<Option<String>>,
    sandboxes: i64,
    cpu_seconds: f64,
    memory_mb_seconds: f64,
    bytes_in: i64,
    bytes_out: i64,
}

pub(super) async fn report(
    State(service): State<Arc<Service>>,
    caller: Caller,
    query: Query<Report>,
) -> Result<Json<Reported>, ApiError> {
    let access = Access::from(&caller);
    let group = match query.text("group_by").unwrap_or("task") {
        "task" => UsageGroup::Task,
        "agent" => UsageGroup::Agent,
        "sandbox" => UsageGroup::Sandbox,
        "run" => UsageGroup::Run,
        _ => return Err(ApiError::bad_request("group_by must be task, agent, sandbox or run")),
    };
    let agent = access.agent_filter(query.text("agent_id"))?;
    if group == UsageGroup::Run && agent.is_some() {
        // Runs of E2B's API have no agent.
        return Err(ServiceError::NotOwner.into());
    }
    let from = parse_time(&query, "from")?.unwrap_or(Timestamp(0));
    let to = parse_time(&query, "to")?.unwrap_or(Timestamp(i64::MAX));
    let team = access.team_filter();
    let rows = service.store.report_usage(team.as_ref(), agent.as_deref(), group, (from, to)).await?;
    Ok(Json(Reported { usage: rows.into_iter().map(|row| shown(group, row)).collect() }))
}

fn shown(group: UsageGroup, row: UsageRow) -> Usage {
    let mut shown = Usage {
        sandboxes: row.sandboxes,
        cpu_seconds: row.cpu_micros as f64 / 1e6,
        memory_mb_seconds: row.memory_mib_ms as f64 / 1e3,
        bytes_in: row.bytes_in,
        bytes_out: row.bytes_out,
        ..Usage::default()
    };
    let name = match group {
        UsageGroup::Task => &mut shown.task_id,
        UsageGroup::Agent => &mut shown.agent_id,
        UsageGroup::Sandbox => &mut shown.sandbox_id,
        UsageGroup::Run => &mut shown.run,
    };
    *name = Some(row.name);
    shown
}
