//! JSON representations of the service's rows.

use axum::Json;
use axum::response::{IntoResponse as _, Response};
use http::StatusCode;
use isopod_control::audit::Subject;
use isopod_store::service::{ServiceSandbox, StoredCommand};
use serde_json::{Value, json};

/// A sandbox. `id` is the service's, and `sandbox_id` is the one for SDKs.
pub(super) fn sandbox(row: &ServiceSandbox) -> Value {
    json!({
        "id": row.id,
        "sandbox_id": row.sandbox,
        "agent_id": row.agent,
        "task_id": row.task,
        "template": row.template,
        "status": row.status.text(),
        "reason": row.reason,
        "repo_url": row.repo_url,
        "branch_name": row.branch_name,
        "limits": { "cpu_millis": row.cpu_millis, "memory_mb": row.memory_mib },
        "metadata": row.metadata,
        "timeout": row.timeout.as_secs(),
        "server": row.server,
        "created_at": row.created_at,
        "running_at": row.running_at,
        "destroyed_at": row.destroyed_at,
    })
}

/// A response with what the audit needs.
pub(super) fn sandbox_answer(status: StatusCode, row: &ServiceSandbox) -> Response {
    let mut response = (status, Json(sandbox(row))).into_response();
    response.extensions_mut().insert(Subject::from(row));
    response
}

pub(super) fn command(stored: &StoredCommand, with_output: bool) -> Value {
    let row = &stored.row;
    let mut shown = json!({
        "id": row.id,
        "sandbox_id": row.sandbox,
        "agent_id": row.agent,
        "task_id": row.task,
        "actor": row.actor,
        "command": row.command,
        "cwd": row.cwd,
        "outcome": stored.outcome,
        "exit_code": row.exit_code,
        "error": row.error,
        "stdout_bytes": row.stdout_bytes,
        "stderr_bytes": row.stderr_bytes,
        "started_at": row.started_at,
        "duration_ms": row.duration_ms,
    });
    if with_output {
        shown["stdout"] = json!(row.stdout);
        shown["stderr"] = json!(row.stderr);
    }
    shown
}
