//! `GET /api/v1/usage`: resource usage by task, agent, sandbox or run.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use isopod_control::http::{ApiError, Caller, Query};
use isopod_store::clock::Timestamp;
use isopod_store::service::{UsageGroup, UsageRow};
use serde_json::{Value, json};

use super::audit::parse_time;
use crate::Access;
use crate::Service;
use crate::ServiceError;

pub(super) async fn report(
    State(service): State<Arc<Service>>,
    caller: Caller,
    query: Query,
) -> Result<Json<Value>, ApiError> {
    let query = query.only(&["group_by", "from", "to", "agent_id"])?;
    let access = Access::from(&caller);
    let (name, group) = match query.text("group_by").unwrap_or("task") {
        "task" => ("task_id", UsageGroup::Task),
        "agent" => ("agent_id", UsageGroup::Agent),
        "sandbox" => ("sandbox_id", UsageGroup::Sandbox),
        "run" => ("run", UsageGroup::Run),
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
    Ok(Json(json!({ "usage": rows.iter().map(|row| shown(name, row)).collect::<Vec<_>>() })))
}

fn shown(name: &str, row: &UsageRow) -> Value {
    let mut shown = json!({
        "sandboxes": row.sandboxes,
        "cpu_seconds": row.cpu_micros as f64 / 1e6,
        "memory_mb_seconds": row.memory_mib_ms as f64 / 1e3,
        "bytes_in": row.bytes_in,
        "bytes_out": row.bytes_out,
    });
    shown[name] = json!(row.name);
    shown
}
