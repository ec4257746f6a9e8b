//! `POST /api/v1/sandboxes`: creates a sandbox, optionally for an agent and a task.
//!
//! Sent again with the same `Idempotency-Key`, or with the same agent, task and `attempt`, it returns the same sandbox.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::FromRequestParts;
use axum::extract::State;
use http::request::Parts;
use isopod_api::{ApiError, Caller, DescribeInput, Description, JsonBody, Param, Prepared, until_answered};
use isopod_wire::{Bytes, Limits};
use serde::Deserialize;
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use utoipa::ToSchema;

use super::names::{checked_env, checked_metadata, checked_option};
use super::views::{CreatedSandbox, created_sandbox};
use crate::Access;
use crate::Service;
use crate::{NewServiceSandbox, ServiceError};

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = NewServiceSandbox)]
pub(super) struct NewBody {
    #[schema(min_length = 1, max_length = 128, pattern = "^[A-Za-z0-9_.:@-]+$")]
    agent_id: Option<String>,
    #[schema(min_length = 1, max_length = 128, pattern = "^[A-Za-z0-9_.:@-]+$")]
    task_id: Option<String>,
    #[schema(min_length = 1, max_length = 256)]
    template: Option<String>,
    limits: Option<LimitsBody>,
    metadata: Option<BTreeMap<String, String>>,
    env: Option<BTreeMap<String, String>>,
    /// Seconds.
    #[schema(minimum = 1, maximum = 86400)]
    timeout: Option<u64>,
    /// The same agent, task and attempt give the same sandbox.
    attempt: Option<u32>,
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = NewLimits)]
struct LimitsBody {
    cpu_millis: Option<u32>,
    memory_mb: Option<u64>,
    disk_mb: Option<u64>,
    pids: Option<u32>,
}

/// What the caller calls its create.
#[derive(Debug)]
pub(super) struct IdempotencyKey(Option<String>);

impl<S: Sync> FromRequestParts<S> for IdempotencyKey {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        let Some(key) = parts.headers.get("idempotency-key") else { return Ok(Self(None)) };
        let is_allowed = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'-' || *byte == b'_';
        let bytes = key.as_bytes();
        if bytes.is_empty() || bytes.len() > 255 || !bytes.iter().all(is_allowed) {
            return Err(ApiError::bad_request("Idempotency-Key must be 1 to 255 of letters, digits, - and _"));
        }
        Ok(Self(Some(String::from_utf8_lossy(bytes).into_owned())))
    }
}

impl DescribeInput for IdempotencyKey {
    fn describe(operation: &mut Description) {
        let key = Param::pattern("Idempotency-Key", "^[A-Za-z0-9_-]{1,255}$");
        operation.header(&key.about("the same key gives the same sandbox"));
    }
}

pub(super) async fn create(
    State(service): State<Arc<Service>>,
    caller: Caller,
    key: IdempotencyKey,
    body: JsonBody<NewBody>,
) -> Result<Prepared<CreatedSandbox>, ApiError> {
    let request = body.0.clone();
    let body = body.parse()?;
    let name = attempt_name(key, &body, caller.scope.agent())?;
    let mut wanted = body.checked(&service)?;
    // An agent's key creates sandboxes for its agent.
    if let (None, Some(agent)) = (&wanted.agent, caller.scope.agent()) {
        wanted.agent = Some(agent.to_owned());
    }
    wanted.idempotency = name.map(|name| (name, digest(&request)));
    service.wait_to_create(&Access::from(&caller), &wanted).await?;
    // A task or a name leads back to the sandbox. Without either, a client that disconnected never finds it.
    if wanted.task.is_some() || wanted.idempotency.is_some() {
        let row = service.create(&Access::from(&caller), wanted).await?;
        return Ok(Prepared::new(created_sandbox(&row)));
    }
    let (maker, access) = (Arc::clone(&service), Access::from(&caller));
    let making = async move { maker.create(&access, wanted).await };
    let undo = |row| async move { service.end_unanswered(row).await };
    let made = until_answered(making, undo).await.unwrap_or(Err(ServiceError::Aborted));
    let (row, receipt) = made?;
    Ok(Prepared::new(receipt.on(created_sandbox(&row))))
}

impl NewBody {
    pub(super) fn checked(self, service: &Service) -> Result<NewServiceSandbox, ApiError> {
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
            limits: self.limits.map(|limits| limits.checked(service)).transpose()?,
            metadata: checked_metadata(self.metadata.unwrap_or_default())?,
            env: checked_env(self.env.unwrap_or_default())?,
            timeout: self.timeout.map(|seconds| checked_timeout(service, seconds)).transpose()?,
            ..NewServiceSandbox::default()
        })
    }
}

impl LimitsBody {
    fn checked(self, service: &Service) -> Result<Limits, ApiError> {
        let default = service.fleet.sandbox_limits();
        let limits = Limits {
            cpu_millis: self.cpu_millis.unwrap_or(default.cpu_millis),
            memory: self.memory_mb.map_or(default.memory, |mib| Bytes(mib.saturating_mul(1 << 20))),
            disk: self.disk_mb.map(|mib| Bytes(mib.saturating_mul(1 << 20))).or(default.disk),
            pids: self.pids.unwrap_or(default.pids),
        };
        limits.check().map_err(|error| ApiError::bad_request(format!("limits: {error}")))?;
        Ok(limits)
    }
}

fn checked_timeout(service: &Service, seconds: u64) -> Result<Duration, ApiError> {
    let max = service.fleet.max_lifetime().min(service.config.stale_after);
    let timeout = Duration::from_secs(seconds);
    if seconds == 0 || timeout > max {
        return Err(ApiError::bad_request(format!("timeout must be 1 to {} seconds", max.as_secs())));
    }
    Ok(timeout)
}

/// The caller's name for this create: its key, or agent, task and attempt together. What an agent's key calls it is that
/// agent's own name for it.
fn attempt_name(
    IdempotencyKey(key): IdempotencyKey,
    body: &NewBody,
    agent: Option<&str>,
) -> Result<Option<String>, ApiError> {
    if let Some(key) = key {
        return Ok(Some(match agent {
            Some(agent) => format!("agent:{agent}/key:{key}"),
            None => format!("key:{key}"),
        }));
    }
    match (&body.agent_id, &body.task_id, body.attempt) {
        (_, _, None) => Ok(None),
        (Some(agent), Some(task), Some(attempt)) => Ok(Some(format!("attempt:{agent}/{task}/{attempt}"))),
        _ => Err(ApiError::bad_request("attempt needs agent_id and task_id")),
    }
}

/// Objects are printed with sorted keys, so the same request gives the same digest.
fn digest(body: &Value) -> [u8; 32] {
    Sha256::digest(body.to_string()).into()
}
