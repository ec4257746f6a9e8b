//! Creates a sandbox, as a lease: first a row that records the intent and counts against the quotas, then the sandbox,
//! then the updated row.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use isopod_lease::{Holder, LeaseEnded, LeaseName, Leased, Opened};
use isopod_store::TeamId;
use isopod_store::clock::Timestamp;
use isopod_store::secrets::{new_sandbox_id, new_uuid};
use isopod_store::service::{ServiceSandbox, Status, Taken};
use isopod_wire::{Limits, SandboxId};
use serde_json::json;

use super::access::{Access, Operation};
use super::backend::{BackendError, CreateKey, CreateSpec, Effect};
use super::{SERVER_LABEL, Service, ServiceError};

/// A checked request.
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
    /// The caller's name for this create, and a digest of the request.
    pub(crate) idempotency: Option<(String, [u8; 32])>,
}

impl Service {
    /// Waits until [`Self::create`] needs to wait for nothing more than the sandbox itself. While its template is being built
    /// nothing is begun, so a client that hangs up then leaves nothing. A repeated request does not wait.
    pub(crate) async fn wait_to_create(&self, access: &Access, wanted: &NewServiceSandbox) -> Result<(), ServiceError> {
        self.check_create(access, wanted).await?;
        if let Some((name, _)) = &wanted.idempotency
            && self.store.has_service_attempt(&access.team, name).await?
        {
            return Ok(());
        }
        let template = wanted.template.as_ref().unwrap_or(&self.config.template);
        let waited = self.backend.wait_for_template(&access.team, template).await;
        let (agent, task) = (wanted.agent.as_deref(), wanted.task.as_deref());
        waited.inspect_err(|error| self.note_failure(None, agent, task, error)).map_err(ServiceError::from)
    }

    /// Creates a sandbox and waits until it replies. The same request under the same name returns the same sandbox.
    pub(crate) async fn create(
        self: &Arc<Self>,
        access: &Access,
        wanted: NewServiceSandbox,
    ) -> Result<ServiceSandbox, ServiceError> {
        self.check_create(access, &wanted).await?;
        let (service, key) = (Arc::clone(self), CreateKey::random());
        let intent = self.intent(access.team.clone(), &wanted, &key);
        let lessee = Lessee { service, access: access.clone(), wanted, key, intent, started: Instant::now() };
        let leased = self.fleet.leases.hold(lessee).await?;
        Ok(leased.sandbox.row)
    }

    async fn check_create(&self, access: &Access, wanted: &NewServiceSandbox) -> Result<(), ServiceError> {
        access.check_change()?;
        access
            .check(Operation::Write, &access.team, wanted.agent.as_deref())
            .map_err(|denied| denied.error("agent", wanted.agent.as_deref().unwrap_or_default()))?;
        self.check_task(access, wanted.task.as_deref()).await
    }

    /// Refuses a sandbox for another agent's task if the key belongs to an agent, because it would count as that
    /// agent's.
    async fn check_task(&self, access: &Access, task: Option<&str>) -> Result<(), ServiceError> {
        let (Some(_), Some(task)) = (access.scope.agent(), task) else { return Ok(()) };
        match self.store.find_task(&access.team, task).await? {
            Some(row) if row.assigned_agent_id.is_some() => {
                self.find_task(access, Operation::Write, task).await.map(drop)
            }
            _ => Ok(()),
        }
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

    fn spec_of(&self, row: &ServiceSandbox, wanted: &NewServiceSandbox, key: CreateKey) -> CreateSpec {
        let mut spec = CreateSpec::new(row.team.clone(), row.template.clone());
        spec.key = key;
        spec.timeout = row.timeout;
        spec.limits = wanted.limits;
        spec.env = wanted.env.clone();
        spec.metadata = wanted.metadata.clone();
        let labels =
            [(SERVER_LABEL, Some(self.server.clone())), ("agent_id", row.agent.clone()), ("task_id", row.task.clone())];
        spec.metadata.extend(labels.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))));
        spec
    }

    /// Ends the row of a sandbox that was not created. The caller's name for it is free again.
    async fn give_up(&self, mut row: ServiceSandbox, error: BackendError) -> ServiceError {
        self.metrics.failure(error.kind().text());
        let why = isopod_wire::error_chain(&error);
        tracing::warn!(sandbox = row.id, agent = row.agent, task = row.task, error = why, "could not create a sandbox");
        if error.effect() == Effect::Unknown {
            self.remove_labelled(&row.create_key).await;
        }
        row.idempotency = None;
        row.status = Status::Error;
        row.reason = Some(format!("create_failed: {}", error.kind().text()));
        row.destroyed_at = Some(Timestamp::now());
        if let Err(error) = self.store.save_service_sandbox(&row).await {
            // The row stays `creating`, and the reconciler ends it after its deadline.
            tracing::warn!(
                sandbox = row.id,
                error = isopod_wire::error_chain(&error),
                "could not record a failed create"
            );
        }
        self.publish_status(&row);
        error.into()
    }

    /// Ends whatever a create with this key has made.
    pub(super) async fn remove_labelled(&self, create_key: &str) {
        let label = BTreeMap::from([(super::backend::CREATE_LABEL.to_owned(), create_key.to_owned())]);
        match self.backend.list(&label).await {
            Ok(found) => {
                for sandbox in found {
                    self.remove(Some(&sandbox.id)).await;
                }
            }
            Err(error) => {
                tracing::warn!(
                    create_key,
                    error = isopod_wire::error_chain(&error),
                    "could not search for what a create left"
                );
            }
        }
    }

    /// Ends a sandbox that has no live row. If this fails, the reconciler finds it again.
    pub(super) async fn remove(&self, sandbox: Option<&SandboxId>) {
        let Some(id) = sandbox else { return };
        if let Err(error) = self.backend.destroy(id).await {
            tracing::warn!(sandbox = %id, error = isopod_wire::error_chain(&error), "could not remove a sandbox without a row yet");
        }
    }

    /// A sandbox of this node that E2B's API created. It gets a row when it is first used here.
    pub(super) async fn adopt(&self, access: &Access, id: &str) -> Result<Option<ServiceSandbox>, ServiceError> {
        let Ok(parsed) = id.parse::<SandboxId>() else { return Ok(None) };
        let Some(found) = self.fleet.find(&parsed).filter(|_| self.backend.name() == "local") else { return Ok(None) };
        let view = found.view();
        if view.row.state.shown().is_none() || access.check(Operation::Read, &view.row.team, None).is_err() {
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

    /// Publishes the status to the agent's followers.
    pub(super) fn publish_status(&self, row: &ServiceSandbox) {
        let data = json!({
            "sandbox_id": row.id, "task_id": row.task, "status": row.status.text(), "reason": row.reason,
        });
        self.hub.publish(&row.team, row.agent.as_deref(), "sandbox_status", data);
    }
}

/// One create of a caller.
struct Lessee {
    service: Arc<Service>,
    access: Access,
    wanted: NewServiceSandbox,
    key: CreateKey,
    intent: ServiceSandbox,
    started: Instant,
}

/// A sandbox with its row.
struct CreatedSandbox {
    id: SandboxId,
    row: ServiceSandbox,
}

impl Holder for Lessee {
    /// The row before the sandbox is created.
    type Record = ServiceSandbox;
    type Sandbox = CreatedSandbox;
    type Error = ServiceError;

    fn name(&self) -> LeaseName {
        LeaseName { team: self.intent.team.clone(), key: format!("service/{}", self.intent.id) }
    }

    fn id(made: &CreatedSandbox) -> &SandboxId {
        &made.id
    }

    fn ended(&self, _: LeaseEnded) -> ServiceError {
        ServiceError::Aborted
    }

    async fn open(&self) -> Result<Opened<ServiceSandbox, CreatedSandbox>, ServiceError> {
        let service = &self.service;
        let quotas = service.quotas_of(&self.intent.team).await?;
        let (record, live) = match service.store.insert_service_sandbox(&self.intent, &quotas).await? {
            Taken::First => {
                service.publish_status(&self.intent);
                (self.intent.clone(), None)
            }
            Taken::Before(row) if self.access.check(Operation::Write, &row.team, row.agent.as_deref()).is_ok() => {
                let made = existing_sandbox(*row)?;
                (made.row.clone(), Some(made))
            }
            Taken::Before(_) | Taken::Mismatch => {
                let message = "this Idempotency-Key was used for another request";
                return Err(ServiceError::conflict("idempotency_request_mismatch", message));
            }
            Taken::Exceeded(quota) => return Err(quota.into()),
        };
        Ok(Opened { record, live, recorded: None, restarts: 0 })
    }

    async fn create(&self, intent: &ServiceSandbox) -> Result<CreatedSandbox, ServiceError> {
        let spec = self.service.spec_of(intent, &self.wanted, self.key.clone());
        let id = match self.service.backend.create(&spec).await {
            Ok(made) => made.id,
            Err(error) => return Err(self.service.give_up(intent.clone(), error).await),
        };
        let (sandbox, running_at) = (Some(id.clone()), Some(Timestamp::now()));
        Ok(CreatedSandbox {
            id,
            row: ServiceSandbox { sandbox, running_at, status: Status::Running, ..intent.clone() },
        })
    }

    async fn record(&self, before: &ServiceSandbox, leased: &Leased<CreatedSandbox>) -> Result<(), ServiceError> {
        if before.status != Status::Creating {
            return Ok(());
        }
        let row = &leased.sandbox.row;
        if !self.service.store.save_service_sandbox(row).await? {
            return Err(ServiceError::conflict("ended_meanwhile", "the sandbox was ended while it was created"));
        }
        self.service.metrics.created(self.started.elapsed());
        self.service.publish_status(row);
        Ok(())
    }

    async fn discard(&self, made: CreatedSandbox) {
        self.service.remove(Some(&made.id)).await;
    }
}

/// The sandbox that the same request created before.
fn existing_sandbox(row: ServiceSandbox) -> Result<CreatedSandbox, ServiceError> {
    match (row.destroyed_at, row.status, row.sandbox.clone()) {
        (Some(_), ..) => {
            let message = format!("sandbox {}, which this Idempotency-Key created, has ended", row.id);
            Err(ServiceError::conflict("sandbox_ended", message))
        }
        (None, Status::Creating, _) | (None, _, None) => {
            let message = "a request with this Idempotency-Key is in progress";
            Err(ServiceError::conflict("idempotency_in_progress", message))
        }
        (None, _, Some(id)) => Ok(CreatedSandbox { id, row }),
    }
}
