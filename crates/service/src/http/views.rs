//! JSON representations of the service's rows.

use std::collections::BTreeMap;

use axum::response::{IntoResponse as _, Response};
use axum::{Extension, Json};
use isopod_api::{Created, audit::Subject};
use isopod_store::clock::Timestamp;
use isopod_store::service::{ServiceSandbox, Status, StoredCommand};
use isopod_wire::SandboxId;
use serde::Serialize;
use utoipa::ToSchema;

/// A sandbox: `id` is the service's, `sandbox_id` what SDKs connect to.
#[derive(Serialize, ToSchema)]
#[schema(as = ServiceSandbox)]
pub(super) struct SandboxView {
    id: String,
    #[schema(value_type = Option<String>)]
    sandbox_id: Option<SandboxId>,
    agent_id: Option<String>,
    task_id: Option<String>,
    template: String,
    status: Status,
    reason: Option<String>,
    repo_url: Option<String>,
    branch_name: Option<String>,
    limits: LimitsView,
    metadata: BTreeMap<String, String>,
    /// Seconds.
    timeout: u64,
    server: String,
    created_at: Timestamp,
    running_at: Option<Timestamp>,
    destroyed_at: Option<Timestamp>,
}

#[derive(Serialize, ToSchema)]
#[schema(as = SandboxLimits)]
struct LimitsView {
    cpu_millis: Option<i64>,
    memory_mb: i64,
}

/// A command that was run.
#[derive(Serialize, ToSchema)]
#[schema(as = Command)]
pub(super) struct CommandView {
    id: String,
    sandbox_id: String,
    agent_id: Option<String>,
    task_id: Option<String>,
    actor: String,
    command: String,
    cwd: Option<String>,
    outcome: String,
    exit_code: Option<i32>,
    error: Option<String>,
    stdout_bytes: i64,
    stderr_bytes: i64,
    started_at: Timestamp,
    duration_ms: i64,
    /// Not in lists.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    stdout: Option<String>,
    /// Not in lists.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    stderr: Option<String>,
}

/// With what the audit wants to know.
pub(super) type ShownSandbox = (Extension<Subject>, Json<SandboxView>);
pub(super) type CreatedSandbox = (Extension<Subject>, Created<SandboxView>);

pub(super) fn sandbox(row: &ServiceSandbox) -> SandboxView {
    SandboxView {
        id: row.id.clone(),
        sandbox_id: row.sandbox.clone(),
        agent_id: row.agent.clone(),
        task_id: row.task.clone(),
        template: row.template.clone(),
        status: row.status,
        reason: row.reason.clone(),
        repo_url: row.repo_url.clone(),
        branch_name: row.branch_name.clone(),
        limits: LimitsView { cpu_millis: row.cpu_millis, memory_mb: row.memory_mib },
        metadata: row.metadata.clone(),
        timeout: row.timeout.as_secs(),
        server: row.server.clone(),
        created_at: row.created_at,
        running_at: row.running_at,
        destroyed_at: row.destroyed_at,
    }
}

pub(super) fn sandbox_answer(row: &ServiceSandbox) -> ShownSandbox {
    (Extension(Subject::from(row)), Json(sandbox(row)))
}

pub(super) fn created_sandbox(row: &ServiceSandbox) -> Response {
    (Extension(Subject::from(row)), Created(sandbox(row))).into_response()
}

pub(super) fn command(StoredCommand { row, outcome, .. }: StoredCommand, with_output: bool) -> CommandView {
    CommandView {
        id: row.id,
        sandbox_id: row.sandbox,
        agent_id: row.agent,
        task_id: row.task,
        actor: row.actor,
        command: row.command,
        cwd: row.cwd,
        outcome,
        exit_code: row.exit_code,
        error: row.error,
        stdout_bytes: row.stdout_bytes,
        stderr_bytes: row.stderr_bytes,
        started_at: row.started_at,
        duration_ms: row.duration_ms,
        stdout: with_output.then_some(row.stdout),
        stderr: with_output.then_some(row.stderr),
    }
}
