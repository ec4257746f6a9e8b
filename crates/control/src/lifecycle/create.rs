//! Creates a sandbox: check the team's limits, record the intent, call the node, record the result, start a controller.
//!
//! All of it runs in a task of its own, so that a client that disconnects changes nothing.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use isopod_store::clock::Timestamp;
use isopod_store::secrets::{new_sandbox_id, new_token};
use isopod_store::{
    Ending, EventType, InsertError, Level, NetworkSettings, SandboxRow, State, StoreError, TeamId, VolumeMount,
};
use isopod_wire::node::{CreateError, Incarnation, InitialSnapshot, SandboxSpec, TEAM_LABEL, WorkspaceMount};
use isopod_wire::{ALLOW, FeatureError, KernelFeatures, NetworkPolicyError};
use serde_json::json;
use tracing::{Instrument as _, Span, field};

use super::controller;
use super::drain::Draining;
use super::fleet::Fleet;
use super::handle::Sandbox;
use super::team_quota::SlotRefusal;
use super::team_slots::{TeamLimitReached, TeamSlot};
use crate::templates::UsableTemplate;

/// A validated request with all defaults filled in.
#[derive(Clone, Debug)]
pub struct NewSandbox {
    pub team: TeamId,
    pub template: UsableTemplate,
    pub timeout: Duration,
    pub auto_pause: bool,
    pub auto_pause_memory: bool,
    pub auto_resume: bool,
    pub secure: bool,
    pub allow_internet: Option<bool>,
    pub network: NetworkSettings,
    pub metadata: BTreeMap<String, String>,
    pub env: BTreeMap<String, String>,
    pub session_key: Option<String>,
    /// Recorded with the sandbox, so that a repeated request finds it.
    pub idempotency_key: Option<String>,
    /// The parts of the workspace to mount.
    pub mounts: Vec<WorkspaceMount>,
    /// The volumes among them, as the API shows them.
    pub volume_mounts: Vec<VolumeMount>,
}

impl NewSandbox {
    /// The metadata of the sandbox. One from a snapshot has the kernel features of the snapshot's source, and one that names
    /// none has those that the operator gives its template. It is recorded as if it had asked for them: the team must be
    /// allowed to have them, also at every resume.
    pub(crate) fn all_metadata(&self) -> BTreeMap<String, String> {
        let mut metadata = self.metadata.clone();
        if let Some(features) = &self.template.features {
            // Nobody asked for them, so they must not be in the way of mounts.
            let is_possible = |feature: &&str| self.mounts.is_empty() || *feature != "fuse";
            let possible: Vec<&str> = features.split(',').filter(is_possible).collect();
            if !possible.is_empty() {
                metadata.entry(ALLOW.to_owned()).or_insert_with(|| possible.join(","));
            }
        }
        if let Some(features) = self.template.snapshot.as_ref().and_then(|snapshot| snapshot.features.clone()) {
            metadata.insert(ALLOW.to_owned(), features);
        }
        metadata
    }
}

/// Why a sandbox was not created.
#[derive(Debug, thiserror::Error)]
pub enum CreateRefusal {
    #[error(transparent)]
    TeamLimit(#[from] TeamLimitReached),
    #[error(transparent)]
    Draining(#[from] Draining),
    #[error(transparent)]
    Network(#[from] NetworkPolicyError),
    #[error(transparent)]
    Features(#[from] FeatureError),
    /// The session has a sandbox that differs from the request.
    #[error("the session has a sandbox of template {0:?}")]
    SessionDiffers(String),
    /// The session's sandbox could not be used.
    #[error("the session's sandbox cannot be used")]
    Session(#[source] super::ActError),
    #[error("the node could not create the sandbox")]
    Node(#[source] CreateError),
    #[error("the node took longer than {0:?}")]
    NodeTimeout(Duration),
    #[error("the store failed")]
    Store(#[from] StoreError),
    /// Another server holds the session's row.
    #[error("another server is creating the session's sandbox")]
    SessionTaken,
    /// The task that creates the sandbox panicked or was cancelled.
    #[error("the sandbox was not created")]
    Aborted,
}

/// A place among the team's sandboxes, for one that is not there yet. Dropping it gives the place back.
#[derive(Debug)]
pub(crate) struct Reservation {
    slot: TeamSlot,
    features: KernelFeatures,
}

impl From<SlotRefusal> for CreateRefusal {
    fn from(refusal: SlotRefusal) -> Self {
        match refusal {
            SlotRefusal::Limit(limit) => Self::TeamLimit(limit),
            SlotRefusal::Draining(draining) => Self::Draining(draining),
            SlotRefusal::Store(error) => Self::Store(error),
        }
    }
}

impl Fleet {
    /// Creates a sandbox and waits until it answers.
    pub async fn create(self: &Arc<Self>, wanted: NewSandbox) -> Result<Arc<Sandbox>, CreateRefusal> {
        let reservation = self.reserve(&wanted).await?;
        self.create_reserved(wanted, reservation).await
    }

    /// As [`Fleet::create`], in a place that was reserved before.
    pub(crate) async fn create_reserved(
        self: &Arc<Self>,
        wanted: NewSandbox,
        reservation: Reservation,
    ) -> Result<Arc<Sandbox>, CreateRefusal> {
        let fleet = Arc::clone(self);
        let started = Instant::now();
        let span = tracing::info_span!("create sandbox", template = wanted.template.id, sandbox = field::Empty);
        let creating = tokio::spawn(async move { fleet.run_create(wanted, reservation).await }.instrument(span));
        let made = creating.await.unwrap_or(Err(CreateRefusal::Aborted));
        self.counters.created(made.is_ok(), started.elapsed());
        made
    }

    /// Waits until a create needs to wait for nothing more than its own sandbox. What will be refused anyway does not wait,
    /// and a team can't have more waiting than may run. The create takes a place of its own: with a key, it may find that
    /// another request has created the sandbox meanwhile.
    pub(crate) async fn wait_to_create(&self, wanted: &NewSandbox) -> Result<(), CreateRefusal> {
        self.check_features(wanted)?;
        let _waiting = self.slot_for_waiting(&wanted.team).await?;
        self.wait_for_template(&wanted.template).await
    }

    /// As [`Fleet::wait_to_create`], with the place in which the create begins.
    pub(crate) async fn reserve_and_wait(&self, wanted: &NewSandbox) -> Result<Reservation, CreateRefusal> {
        let reservation = self.reserve(wanted).await?;
        self.wait_for_template(&wanted.template).await?;
        Ok(reservation)
    }

    /// Waits until sandboxes of a template can be created, but not longer than a client usually waits for a response. Begins
    /// nothing, so a caller may stop waiting at any time.
    pub async fn wait_for_template(&self, template: &UsableTemplate) -> Result<(), CreateRefusal> {
        let started = Instant::now();
        let waited = self.node.wait_for_template(template.node_template.name()).await.map_err(CreateRefusal::Node);
        waited.inspect_err(|_| self.counters.created(false, started.elapsed()))
    }

    async fn reserve(&self, wanted: &NewSandbox) -> Result<Reservation, CreateRefusal> {
        let started = Instant::now();
        let reserved = self.take_place(wanted).await;
        reserved.inspect_err(|_| self.counters.created(false, started.elapsed()))
    }

    async fn take_place(&self, wanted: &NewSandbox) -> Result<Reservation, CreateRefusal> {
        let features = self.check_features(wanted)?;
        Ok(Reservation { slot: self.slot_for_create(&wanted.team).await?, features })
    }

    /// The kernel features that the sandbox gets, if its team may have them.
    fn check_features(&self, wanted: &NewSandbox) -> Result<KernelFeatures, FeatureError> {
        let features = self.settings.features.check(&wanted.team.0, &wanted.all_metadata())?;
        if features.fuse && !wanted.mounts.is_empty() { Err(FeatureError::FuseWithMounts) } else { Ok(features) }
    }

    async fn run_create(
        self: &Arc<Self>,
        wanted: NewSandbox,
        Reservation { slot, features }: Reservation,
    ) -> Result<Arc<Sandbox>, CreateRefusal> {
        let mut row = self.intent(&wanted);
        Span::current().record("sandbox", row.id.as_str());
        let _creating = self.mark_creating(row.id.clone());
        let spec = spec_of(&row, wanted.template, wanted.env, wanted.mounts, features)?;
        self.record_intent(&row, wanted.idempotency_key.as_deref()).await?;
        let incarnation = match self.ask_node(spec).await {
            Ok(incarnation) => incarnation,
            Err(refusal) => {
                self.give_up(row, &refusal).await;
                return Err(refusal);
            }
        };
        row.execution = Some(incarnation.execution.clone());
        row.state = State::Running;
        row.started_at = Timestamp::now();
        row.ends_at = row.started_at.plus(wanted.timeout);
        if let Err(error) = self.store.save_sandbox(&row).await {
            self.kill_unrecorded(&incarnation).await;
            let refusal = CreateRefusal::Store(error);
            self.give_up(row, &refusal).await;
            return Err(refusal);
        }
        Ok(self.begin(row, slot))
    }

    fn intent(&self, wanted: &NewSandbox) -> SandboxRow {
        let now = Timestamp::now();
        // Also if ports are public, because the interpreter's contexts are not (`edge::proxy`).
        let has_traffic_token = wanted.secure || wanted.network.allow_public_traffic == Some(false);
        SandboxRow {
            id: new_sandbox_id(),
            team: wanted.team.clone(),
            template: wanted.template.id.clone(),
            alias: wanted.template.alias.clone(),
            state: State::Creating,
            execution: None,
            created_at: now,
            started_at: now,
            ends_at: now.plus(wanted.timeout),
            ended_at: None,
            timeout: wanted.timeout,
            auto_pause: wanted.auto_pause,
            auto_pause_memory: wanted.auto_pause_memory,
            auto_resume: wanted.auto_resume,
            allow_internet: wanted.allow_internet,
            network: wanted.network.clone(),
            metadata: wanted.all_metadata(),
            limits: wanted.template.limits,
            access_token: wanted.secure.then(new_token),
            traffic_token: has_traffic_token.then(new_token),
            session_key: wanted.session_key.clone(),
            volume_mounts: wanted.volume_mounts.clone(),
        }
    }

    async fn record_intent(&self, row: &SandboxRow, idempotency_key: Option<&str>) -> Result<(), CreateRefusal> {
        match self.store.insert_sandbox(row).await {
            Ok(()) => {}
            Err(InsertError::SessionTaken) => return Err(CreateRefusal::SessionTaken),
            Err(InsertError::Store(error)) => return Err(error.into()),
        }
        if let Some(key) = idempotency_key {
            self.store.attach_key(&row.team, key, &row.id).await?;
        }
        Ok(())
    }

    /// Asks the node to create the sandbox. If that takes too long, the call continues, and its sandbox is removed.
    async fn ask_node(self: &Arc<Self>, spec: SandboxSpec) -> Result<Incarnation, CreateRefusal> {
        let limit = match spec.snapshot {
            Some(_) => self.settings.memory_timeout.max(self.settings.create_timeout),
            None => self.settings.create_timeout,
        };
        let fleet = Arc::clone(self);
        let mut asking =
            tokio::spawn(async move { fleet.node.create(spec).await }.instrument(tracing::info_span!("node create")));
        match tokio::time::timeout(limit, &mut asking).await {
            Ok(Ok(answer)) => answer.map_err(CreateRefusal::Node),
            Ok(Err(_)) => Err(CreateRefusal::Aborted),
            Err(_) => {
                let fleet = Arc::clone(self);
                tokio::spawn(async move {
                    if let Ok(Ok(incarnation)) = asking.await {
                        fleet.kill_unrecorded(&incarnation).await;
                    }
                });
                Err(CreateRefusal::NodeTimeout(limit))
            }
        }
    }

    /// Removes a sandbox that has no row. If the node fails, it is asked again until it succeeds.
    pub(super) async fn kill_unrecorded(self: &Arc<Self>, incarnation: &Incarnation) {
        let Err(error) = self.node.kill(incarnation).await else { return };
        tracing::error!(%incarnation, error = isopod_wire::error_chain(&error), "could not remove an unrecorded sandbox yet");
        let (fleet, incarnation) = (Arc::clone(self), incarnation.clone());
        tokio::spawn(async move {
            while !fleet.stop.is_cancelled() && fleet.node.kill(&incarnation).await.is_err() {
                tokio::time::sleep(RETRY_AFTER).await;
            }
        });
    }

    /// Ends the row of a sandbox that was not created. If the store fails, the write is retried until it succeeds.
    async fn give_up(self: &Arc<Self>, mut row: SandboxRow, refusal: &CreateRefusal) {
        row.state = State::Ended(Ending::CreateFailed);
        row.ended_at = Some(Timestamp::now());
        let why = isopod_wire::error_chain(refusal);
        self.journal.line(&row.id, Level::Error, "sandbox was not created", &[("reason", why)]);
        if self.store.save_sandbox(&row).await.is_ok() {
            return;
        }
        let (store, stop) = (self.store.clone(), self.stop.clone());
        tokio::spawn(async move {
            while !stop.is_cancelled() && store.save_sandbox(&row).await.is_err() {
                tokio::time::sleep(RETRY_AFTER).await;
            }
        });
    }

    fn begin(self: &Arc<Self>, row: SandboxRow, slot: TeamSlot) -> Arc<Sandbox> {
        self.journal.line(&row.id, Level::Info, "sandbox created", &[("template", row.template.clone())]);
        let (cpus, memory) = (row.limits.whole_cpus(), row.limits.memory.as_mib());
        let execution = json!({ "started_at": row.started_at, "vcpu_count": cpus, "memory_mb": memory });
        self.journal.event(EventType::Created, &row, json!({ "execution": execution }));
        controller::adopt(self, row, Some(slot))
    }
}

fn spec_of(
    row: &SandboxRow,
    template: UsableTemplate,
    mut env: BTreeMap<String, String>,
    mounts: Vec<WorkspaceMount>,
    features: KernelFeatures,
) -> Result<SandboxSpec, NetworkPolicyError> {
    // The template id that clients know. The node has an id of its own for what was built.
    env.insert("E2B_TEMPLATE_ID".to_owned(), row.template.clone());
    let labels = [(OWNER_LABEL, SERVER_OWNER), (TEAM_LABEL, row.team.0.as_str())];
    Ok(SandboxSpec {
        sandbox: row.id.clone(),
        template: template.node_template.into_name(),
        limits: row.limits,
        network: row.network.policy(row.allow_internet)?,
        env,
        access_token: row.access_token.clone(),
        labels: labels.map(|(name, value)| (name.to_owned(), value.to_owned())).into(),
        mounts,
        features,
        snapshot: template
            .snapshot
            .map(|snapshot| InitialSnapshot { id: snapshot.id, files_only: !snapshot.has_memory }),
    })
}

const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Marks the server's sandboxes on the node. Only marked sandboxes are removed if the store does not know them.
const OWNER_LABEL: &str = "isopod.owner";
const SERVER_OWNER: &str = "server";

/// Whether a server created this sandbox.
pub(super) fn has_server_label(spec: &SandboxSpec) -> bool {
    spec.labels.get(OWNER_LABEL).is_some_and(|owner| owner == SERVER_OWNER)
}
