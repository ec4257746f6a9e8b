//! All live sandboxes of this server, and the state that their controllers share.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use isopod_lease::Leases;
use isopod_store::service::Tiers;
use isopod_store::{Ending, Level, Store, TeamId};
use isopod_wire::node::{EndReason, Incarnation, NodeApi, NodeEvent};
use isopod_wire::{FeatureGrants, Limits, SandboxId};
use tokio_util::sync::CancellationToken;

use super::drain::DrainSwitch;
use super::handle::Sandbox;
use super::journal::Journal;
use super::snapshot::TemporarySnapshots;
use super::team_memory::TeamMemory;
use super::team_slots::{TeamLimits, TeamSlots};
use crate::telemetry::Counters;

/// The live sandboxes.
pub struct Fleet {
    pub store: Store,
    pub node: Arc<dyn NodeApi>,
    pub(super) journal: Journal,
    pub(super) slots: Arc<TeamSlots>,
    /// The leases of clients that request a sandbox by a key.
    pub leases: Leases,
    pub counters: Arc<Counters>,
    /// For the output that the server collects from sandboxes.
    pub memory: TeamMemory,
    pub(super) settings: FleetSettings,
    /// Cancelled when the server stops. Controllers leave their sandboxes as they are.
    pub(super) stop: CancellationToken,
    /// Cancelled earlier, when the grace period for requests in progress is over. It ends streams from sandboxes.
    pub streams_end: CancellationToken,
    /// Written when a sandbox is created, adopted or gone. Locked for a few instructions.
    sandboxes: RwLock<HashMap<SandboxId, Arc<Sandbox>>>,
    /// Sandboxes that are being created and have no controller yet. Written by the creating task.
    creating: Mutex<HashSet<SandboxId>>,
    /// Snapshots of forks in progress, which no row names. Written by the forking task.
    pub(super) temporary_snapshots: TemporarySnapshots,
    pub(super) draining: DrainSwitch,
}

/// Marks a sandbox as being created until this is dropped.
pub(super) struct Creating<'a> {
    fleet: &'a Fleet,
    id: SandboxId,
}

impl Drop for Creating<'_> {
    fn drop(&mut self) {
        self.fleet.creating.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.id);
    }
}

/// The settings of controllers.
#[derive(Clone, Debug)]
pub(crate) struct FleetSettings {
    pub(crate) team_limits: TeamLimits,
    pub(crate) tiers: Tiers,
    pub(crate) features: FeatureGrants,
    pub(crate) sandbox_limits: Limits,
    pub(crate) max_lifetime: Duration,
    pub(crate) create_timeout: Duration,
    pub(crate) memory_timeout: Duration,
    pub(crate) node_timeout: Duration,
    pub(crate) connections_per_sandbox: usize,
    pub(crate) upstream_idle: Duration,
}

/// Ten years, which no clock overflows.
const MAX_LIFETIME: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

impl Fleet {
    pub(crate) fn new(
        store: Store,
        node: Arc<dyn NodeApi>,
        journal: Journal,
        settings: FleetSettings,
        stop: CancellationToken,
    ) -> Self {
        Self {
            store,
            node,
            journal,
            slots: TeamSlots::new(settings.team_limits),
            leases: Leases::default(),
            counters: Arc::default(),
            memory: TeamMemory::default(),
            settings: FleetSettings { max_lifetime: settings.max_lifetime.min(MAX_LIFETIME), ..settings },
            streams_end: stop.child_token(),
            stop,
            sandboxes: RwLock::default(),
            creating: Mutex::default(),
            temporary_snapshots: Mutex::default(),
            draining: DrainSwitch::default(),
        }
    }

    /// The maximum time that a sandbox runs without a pause.
    pub fn max_lifetime(&self) -> Duration {
        self.settings.max_lifetime
    }

    /// How long a node may take to create a sandbox.
    pub fn create_timeout(&self) -> Duration {
        self.settings.create_timeout
    }

    /// Cancelled when the server stops.
    pub fn stopped(&self) -> CancellationToken {
        self.stop.clone()
    }

    /// The resource limits of one sandbox.
    pub fn sandbox_limits(&self) -> Limits {
        self.settings.sandbox_limits
    }

    /// Returns a live sandbox of any team. For the edge, where only the address counts.
    pub fn find(&self, id: &SandboxId) -> Option<Arc<Sandbox>> {
        self.sandboxes.read().unwrap_or_else(PoisonError::into_inner).get(id).cloned()
    }

    /// Returns a live sandbox of this team, but not one of another team.
    pub fn find_of(&self, team: &TeamId, id: &SandboxId) -> Option<Arc<Sandbox>> {
        self.find(id).filter(|sandbox| sandbox.team() == team)
    }

    /// Returns all live sandboxes.
    pub fn all(&self) -> Vec<Arc<Sandbox>> {
        self.sandboxes.read().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    pub(super) fn add(&self, sandbox: Arc<Sandbox>) {
        let mut sandboxes = self.sandboxes.write().unwrap_or_else(PoisonError::into_inner);
        sandboxes.insert(sandbox.id().clone(), sandbox);
    }

    pub(super) fn remove(&self, id: &SandboxId) {
        self.sandboxes.write().unwrap_or_else(PoisonError::into_inner).remove(id);
    }

    pub(super) fn mark_creating(&self, id: SandboxId) -> Creating<'_> {
        self.creating.lock().unwrap_or_else(PoisonError::into_inner).insert(id.clone());
        Creating { fleet: self, id }
    }

    /// Whether the sandbox neither has a controller nor is being created. The order of the checks matters: a new
    /// sandbox gets its controller before it leaves the first list.
    pub(super) fn is_unknown(&self, id: &SandboxId) -> bool {
        let is_creating = self.creating.lock().unwrap_or_else(PoisonError::into_inner).contains(id);
        !is_creating && self.find(id).is_none()
    }

    /// Adds a warning to the log of a sandbox.
    pub(crate) fn warn(&self, id: &SandboxId, message: &str) {
        self.journal.line(id, Level::Warn, message, &[]);
    }

    /// Passes reports of the node to the controllers, until the node or the server stops.
    pub(crate) async fn follow_node(&self) {
        loop {
            let event = tokio::select! {
                () = self.stop.cancelled() => return,
                event = self.node.next_event() => event,
            };
            match event {
                Some(NodeEvent::Ended { incarnation, reason }) => self.node_ended(incarnation, reason).await,
                None => return,
            }
        }
    }

    /// Passes an ending to the sandbox's controller. Without one, records the reason in the row of a lost sandbox.
    pub(super) async fn node_ended(&self, incarnation: Incarnation, reason: EndReason) {
        if let Some(sandbox) = self.find(&incarnation.sandbox) {
            return sandbox.ended(incarnation, reason);
        }
        // The node confirms a kill that this server requested.
        if reason == EndReason::Killed {
            return;
        }
        if let Err(error) = self.store.explain_loss(&incarnation, Ending::from(reason).text()).await {
            tracing::warn!(%incarnation, error = isopod_wire::error_chain(&error), "could not record why a sandbox ended");
        }
    }
}

impl std::fmt::Debug for Fleet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Fleet").field("settings", &self.settings).finish_non_exhaustive()
    }
}
