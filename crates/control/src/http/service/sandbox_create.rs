//! `POST /api/v1/sandboxes`: make a sandbox for an agent and a task, or for neither.
//!
//! Sent again with the same `Idempotency-Key`, or with the same agent, task and `attempt`, it gives the same sandbox
//! (S2.42).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::response::Response;
use http::{HeaderMap, StatusCode};
use isopod_wire::{Bytes, Limits};
use serde::Deserialize;
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use super::names::{checked_env, checked_metadata, checked_option};
use super::views::sandbox_answer;
use crate::app::App;
use crate::http::auth::Caller;
use crate::http::body::JsonBody;
use crate::http::error::ApiError;
use crate::service::NewServiceSandbox;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct NewBody {
    agent_id: Option<String>,
    task_id: Option<String>,
    template: Option<String>,
    limits: Option<LimitsBody>,
    metadata: Option<BTreeMap<String, String>>,
    env: Option<BTreeMap<String, String>>,
    timeout: Option<u64>,
    attempt: Option<u32>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LimitsBody {
    cpu_millis: Option<u32>,
    memory_mb: Option<u64>,
    disk_mb: Option<u64>,
    pids: Option<u32>,
}

pub(super) async fn create(
    State(app): State<Arc<App>>,
    caller: Caller,
    headers: HeaderMap,
    body: JsonBody,
) -> Result<Response, ApiError> {
    let request = body.0.clone();
    let body: NewBody = body.parse()?;
    let name = attempt_name(&headers, &body)?;
    let mut wanted = body.checked(&app)?;
    // An agent's key makes sandboxes for its agent.
    if let (None, Some(agent)) = (&wanted.agent, caller.scope.agent()) {
        wanted.agent = Some(agent.to_owned());
    }
    wanted.idempotency = name.map(|name| (name, digest(&request)));
    let row = app.service.create(&caller.access(), wanted).await?;
    Ok(sandbox_answer(StatusCode::CREATED, &row))
}

impl NewBody {
    pub(super) fn checked(self, app: &App) -> Result<NewServiceSandbox, ApiError> {
        let template = match self.template {
            Some(name) if name.is_empty() || name.len() > 256 => {
                return Err(ApiError::bad_request("template must have 1 to 256 characters"));
            }
            template => template,
        };
        Ok(NewServiceSandbox {
            agent: checked_option("agent_id", self.agent_id)?,
            task: checked_option("task_id", self.task_id)?,
            template,
            limits: self.limits.map(|limits| limits.checked(app)).transpose()?,
            metadata: checked_metadata(self.metadata.unwrap_or_default())?,
            env: checked_env(self.env.unwrap_or_default())?,
            timeout: self.timeout.map(|seconds| checked_timeout(app, seconds)).transpose()?,
            ..NewServiceSandbox::default()
        })
    }
}

impl LimitsBody {
    fn checked(self, app: &App) -> Result<Limits, ApiError> {
        let usual = app.fleet.sandbox_limits();
        let limits = Limits {
            cpu_millis: self.cpu_millis.unwrap_or(usual.cpu_millis),
            memory: self.memory_mb.map_or(usual.memory, |mib| Bytes(mib.saturating_mul(1 << 20))),
            disk: self.disk_mb.map(|mib| Bytes(mib.saturating_mul(1 << 20))).or(usual.disk),
            pids: self.pids.unwrap_or(usual.pids),
        };
        limits.check().map_err(|error| ApiError::bad_request(format!("limits: {error}")))?;
        Ok(limits)
    }
}

fn checked_timeout(app: &App, seconds: u64) -> Result<Duration, ApiError> {
    let most = app.fleet.max_lifetime().min(app.service.config.stale_after);
    let timeout = Duration::from_secs(seconds);
    if seconds == 0 || timeout > most {
        return Err(ApiError::bad_request(format!("timeout must be 1 to {} seconds", most.as_secs())));
    }
    Ok(timeout)
}

/// The caller's name for this create: its key, or agent, task and attempt together.
fn attempt_name(headers: &HeaderMap, body: &NewBody) -> Result<Option<String>, ApiError> {
    if let Some(key) = headers.get("idempotency-key") {
        let is_allowed = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'-' || *byte == b'_';
        let bytes = key.as_bytes();
        if bytes.is_empty() || bytes.len() > 255 || !bytes.iter().all(is_allowed) {
            return Err(ApiError::bad_request("Idempotency-Key must be 1 to 255 of letters, digits, - and _"));
        }
        return Ok(Some(format!("key:{}", String::from_utf8_lossy(bytes))));
    }
    match (&body.agent_id, &body.task_id, body.attempt) {
        (_, _, None) => Ok(None),
        (Some(agent), Some(task), Some(attempt)) => Ok(Some(format!("attempt:{agent}/{task}/{attempt}"))),
        _ => Err(ApiError::bad_request("attempt needs agent_id and task_id")),
    }
}

/// Objects are printed with sorted keys: the same request gives the same digest.
fn digest(body: &Value) -> [u8; 32] {
    Sha256::digest(body.to_string()).into()
}
