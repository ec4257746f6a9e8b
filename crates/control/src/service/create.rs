//! Making a sandbox: an intent row that counts against the quotas, the backend, the row again.
//!
//! The whole of it runs in a task of its own: a client that goes away in between changes nothing.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use isopod_wire::{Limits, SandboxId};
use serde_json::json;

use super::access::{Access, Aim};
use super::backend::{BackendError, CreateKey, CreateSpec, Effect};
use super::{SERVER_LABEL, Service, ServiceError};
use crate::clock::Timestamp;
use crate::secrets::{new_sandbox_id, new_uuid};
use crate::store::TeamId;
use crate::store::service::{ServiceSandbox, Status, Taken};

/// What is asked for, checked.
#[derive(Clone, Debug, Default)]
pub(crate) struct NewServiceSandbox {
    pub(crate) agent: Option<String>,
    pub(crate) task: Option<String>,
    pub(crate) template: Option<String>,
    pub(crate) limits: Option<Limits>,
    pub(crate) metadata: BTreeMap<String, String>,
    pub(crate) env: BTreeMap<String, String>,
    pub(crate) timeout: Option<Duration>,
    pub(crate) repo_url: Option<String>,
    pub(crate) branch_name: Option<String>,
    /// The caller's name for this create, and a digest of what it asks for.
    pub(crate) idempotency: Option<(String, [u8; 32])>,
}

impl Service {
    /// Makes a sandbox and waits until it answers. The same request under the same name gives the same sandbox.
    pub(crate) async fn create(
        self: &Arc<Self>,
        access: &Access,
        wanted: NewServiceSandbox,
    ) -> Result<ServiceSandbox, ServiceError> {
        access.check_change()?;
        access
            .check(Aim::Change, &access.team, wanted.agent.as_deref())
            .map_err(|denied| denied.error("agent", wanted.agent.as_deref().unwrap_or_default()))?;
        let (service, team) = (Arc::clone(self), access.team.clone());
        let making = tokio::spawn(async move { service.create_to_the_end(team, wanted).await });
        making.await.unwrap_or(Err(ServiceError::Aborted))
    }

    async fn create_to_the_end(&self, team: TeamId, wanted: NewServiceSandbox) -> Result<ServiceSandbox, ServiceError> {
        let started = Instant::now();
        let key = CreateKey::random();
        let mut row = self.intent(team, &wanted, &key);
        match self.store.insert_service_sandbox(&row, &self.config.quotas).await? {
            Taken::First => {}
            Taken::Before(before) => return found_before(*before),
            Taken::Mismatch => {
                let message = "this Idempotency-Key was used for another request";
                return Err(ServiceError::conflict("idempotency_request_mismatch", message));
            }
            Taken::Exceeded(quota) => return Err(quota.into()),
        }
        self.tell_status(&row);
        match self.backend.create(&self.spec_of(&row, wanted, key)).await {
            Ok(made) => row.sandbox = Some(made.id),
            Err(error) => return Err(self.give_up(row, error).await),
        }
        row.status = Status::Running;
        row.running_at = Some(Timestamp::now());
        let saved = self.store.save_service_sandbox(&row).await;
        if !matches!(saved, Ok(true)) {
            // Somebody ended it meanwhile, or there is no record of it: it must not stay.
            self.remove(row.sandbox.as_ref()).await;
            saved?;
            return Err(ServiceError::conflict("ended_meanwhile", "the sandbox was ended while it was made"));
        }
        self.metrics.created(started.elapsed());
        self.tell_status(&row);
        Ok(row)
    }

    fn intent(&self, team: TeamId, wanted: &NewServiceSandbox, key: &CreateKey) -> ServiceSandbox {
        let limits = wanted.limits.unwrap_or_else(|| self.fleet.sandbox_limits());
        ServiceSandbox {
            id: new_sandbox_id().to_string(),
            team,
            server: self.server.clone(),
            agent: wanted.agent.clone(),
            task: wanted.task.clone(),
            sandbox: None,
            template: wanted.template.clone().unwrap_or_else(|| self.config.template.clone()),
            status: Status::Creating,
            reason: None,
            repo_url: wanted.repo_url.clone(),
            branch_name: wanted.branch_name.clone(),
            cpu_millis: Some(i64::from(limits.cpu_millis)),
            memory_mib: i64::try_from(limits.memory.as_mib()).unwrap_or(i64::MAX),
            metadata: wanted.metadata.clone(),
            timeout: wanted.timeout.unwrap_or(self.config.timeout),
            create_key: key.to_string(),
            idempotency: wanted.idempotency.clone(),
            created_at: Timestamp::now(),
            running_at: None,
            destroyed_at: None,
        }
    }

    fn spec_of(&self, row: &ServiceSandbox, wanted: NewServiceSandbox, key: CreateKey) -> CreateSpec {
        let mut spec = CreateSpec::new(row.team.clone(), row.template.clone());
        spec.key = key;
        spec.timeout = row.timeout;
        spec.limits = wanted.limits;
        spec.env = wanted.env;
        spec.metadata = wanted.metadata;
        let labels =
            [(SERVER_LABEL, Some(self.server.clone())), ("agent_id", row.agent.clone()), ("task_id", row.task.clone())];
        spec.metadata.extend(labels.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))));
        spec
    }

    /// Ends the row of a sandbox that was not made. Its caller's name is free again.
    async fn give_up(&self, mut row: ServiceSandbox, error: BackendError) -> ServiceError {
        self.metrics.failure(error.kind().text());
        let why = crate::chain(&error);
        tracing::warn!(sandbox = row.id, agent = row.agent, task = row.task, error = why, "a sandbox was not made");
        if error.effect() == Effect::Unknown {
            self.remove_labelled(&row.create_key).await;
        }
        row.idempotency = None;
        row.status = Status::Error;
        row.reason = Some(format!("create_failed: {}", error.kind().text()));
        row.destroyed_at = Some(Timestamp::now());
        if let Err(error) = self.store.save_service_sandbox(&row).await {
            // The row stays `creating`; the keeper ends it when its deadline is over.
            tracing::warn!(sandbox = row.id, error = crate::chain(&error), "a failed create was not recorded");
        }
        self.tell_status(&row);
        error.into()
    }

    /// Ends whatever a create of this key has made.
    pub(super) async fn remove_labelled(&self, create_key: &str) {
        let label = BTreeMap::from([(super::backend::CREATE_LABEL.to_owned(), create_key.to_owned())]);
        match self.backend.list(&label).await {
            Ok(found) => {
                for sandbox in found {
                    self.remove(Some(&sandbox.id)).await;
                }
            }
            Err(error) => {
                tracing::warn!(create_key, error = crate::chain(&error), "what a create left was not looked for");
            }
        }
    }

    /// Ends a sandbox that has no live row. What fails here is found by the keeper again.
    pub(super) async fn remove(&self, sandbox: Option<&SandboxId>) {
        let Some(id) = sandbox else { return };
        if let Err(error) = self.backend.destroy(id).await {
            tracing::warn!(sandbox = %id, error = crate::chain(&error), "a sandbox without a row was not removed yet");
        }
    }

    /// A sandbox of this node that was made by E2B's own API: it gets a row when it is first named here (S2.41).
    pub(super) async fn adopt(&self, access: &Access, id: &str) -> Result<Option<ServiceSandbox>, ServiceError> {
        let Ok(parsed) = id.parse::<SandboxId>() else { return Ok(None) };
        let Some(found) = self.fleet.find(&parsed).filter(|_| self.backend.name() == "local") else { return Ok(None) };
        let view = found.view();
        if view.row.state.shown().is_none() || access.check(Aim::Look, &view.row.team, None).is_err() {
            return Ok(None);
        }
        let row = ServiceSandbox {
            id: id.to_owned(),
            team: view.row.team.clone(),
            server: self.server.clone(),
            agent: None,
            task: None,
            sandbox: Some(parsed),
            template: view.row.template.clone(),
            status: if view.life.is_some() { Status::Running } else { Status::Paused },
            reason: None,
            repo_url: None,
            branch_name: None,
            cpu_millis: Some(i64::from(view.row.limits.cpu_millis)),
            memory_mib: i64::try_from(view.row.limits.memory.as_mib()).unwrap_or(i64::MAX),
            metadata: view.row.metadata.clone(),
            timeout: view.row.timeout,
            create_key: new_uuid(),
            idempotency: None,
            created_at: view.row.created_at,
            running_at: Some(view.row.started_at),
            destroyed_at: None,
        };
        self.store.adopt_service_sandbox(&row).await?;
        Ok(self.store.find_service_sandbox(id).await?)
    }

    /// Tells those who follow the agent.
    pub(super) fn tell_status(&self, row: &ServiceSandbox) {
        let data = json!({
            "sandbox_id": row.id, "task_id": row.task, "status": row.status.text(), "reason": row.reason,
        });
        self.hub.publish(&row.team, row.agent.as_deref(), "sandbox_status", data);
    }
}

/// The same request was made before.
fn found_before(row: ServiceSandbox) -> Result<ServiceSandbox, ServiceError> {
    match (row.status, row.destroyed_at) {
        (Status::Creating, None) => {
            let message = "a request with this Idempotency-Key is under way";
            Err(ServiceError::conflict("idempotency_in_progress", message))
        }
        (_, None) => Ok(row),
        _ => {
            let message = format!("sandbox {}, which this Idempotency-Key made, has ended", row.id);
            Err(ServiceError::conflict("sandbox_ended", message))
        }
    }
}
