//! All live sandboxes of this server, and what their controllers share.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use isopod_lease::Leases;
use isopod_store::{Ending, Store, TeamId};
use isopod_wire::node::{EndReason, Incarnation, NodeApi, NodeEvent};
use isopod_wire::{FeatureGrants, Limits, SandboxId};
use tokio_util::sync::CancellationToken;

use super::handle::Sandbox;
use super::journal::Journal;
use super::places::{Places, TeamLimits};
use crate::telemetry::Counters;

/// The live sandboxes.
pub struct Fleet {
    pub store: Store,
    pub node: Arc<dyn NodeApi>,
    pub(super) journal: Journal,
    pub(super) places: Arc<Places>,
    /// Of all who ask for a sandbox by a name of theirs.
    pub leases: Leases,
    pub counters: Arc<Counters>,
    pub(super) settings: FleetSettings,
    /// Cancelled when the server stops; controllers leave their sandboxes as they are.
    pub(super) stop: CancellationToken,
    /// Cancelled before that, once requests under way have had their time: streams from sandboxes end.
    pub streams_end: CancellationToken,
    /// Written when a sandbox is made, adopted or gone; held for a few instructions.
    sandboxes: RwLock<HashMap<SandboxId, Arc<Sandbox>>>,
    /// Those that are being made and have no controller yet. Written by whoever makes them.
    making: Mutex<HashSet<SandboxId>>,
}

/// A sandbox is being made, until this is dropped.
pub(super) struct Making<'a> {
    fleet: &'a Fleet,
    id: SandboxId,
}

impl Drop for Making<'_> {
    fn drop(&mut self) {
        self.fleet.making.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.id);
    }
}

/// What controllers are configured with.
#[derive(Clone, Debug)]
pub(crate) struct FleetSettings {
    pub(crate) team_limits: TeamLimits,
    pub(crate) features: FeatureGrants,
    pub(crate) sandbox_limits: Limits,
    pub(crate) max_lifetime: Duration,
    pub(crate) create_timeout: Duration,
    pub(crate) node_timeout: Duration,
    pub(crate) connections_per_sandbox: usize,
    pub(crate) upstream_idle: Duration,
}

/// Far enough for everyone, and near enough for every clock.
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
            places: Places::new(settings.team_limits),
            leases: Leases::default(),
            counters: Arc::default(),
            settings: FleetSettings { max_lifetime: settings.max_lifetime.min(MAX_LIFETIME), ..settings },
            streams_end: stop.child_token(),
            stop,
            sandboxes: RwLock::default(),
            making: Mutex::default(),
        }
    }

    /// The longest that a sandbox runs without a pause.
    pub fn max_lifetime(&self) -> Duration {
        self.settings.max_lifetime
    }

    /// How long a node may take to make a sandbox.
    pub fn create_timeout(&self) -> Duration {
        self.settings.create_timeout
    }

    /// Cancelled when the server stops.
    pub fn stopped(&self) -> CancellationToken {
        self.stop.clone()
    }

    /// What one sandbox gets.
    pub fn sandbox_limits(&self) -> Limits {
        self.settings.sandbox_limits
    }

    /// A live sandbox, whoever owns it. For the edge, where the address alone counts.
    pub fn find(&self, id: &SandboxId) -> Option<Arc<Sandbox>> {
        self.sandboxes.read().unwrap_or_else(PoisonError::into_inner).get(id).cloned()
    }

    /// A live sandbox of this team. Another team's is not found.
    pub fn find_of(&self, team: &TeamId, id: &SandboxId) -> Option<Arc<Sandbox>> {
        self.find(id).filter(|sandbox| sandbox.team() == team)
    }

    /// Every live sandbox.
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

    pub(super) fn begin_making(&self, id: SandboxId) -> Making<'_> {
        self.making.lock().unwrap_or_else(PoisonError::into_inner).insert(id.clone());
        Making { fleet: self, id }
    }

    /// Neither has it a controller nor is one on the way. Asked in this order: who has been made is in the second list
    /// before it leaves the first.
    pub(super) fn is_unknown(&self, id: &SandboxId) -> bool {
        let is_made = self.making.lock().unwrap_or_else(PoisonError::into_inner).contains(id);
        !is_made && self.find(id).is_none()
    }

    /// Hands what the node reports to the controllers, until the node or the server stops.
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

    /// Passes an ending on to the sandbox's controller, or into the row of one that was only known to be lost.
    pub(super) async fn node_ended(&self, incarnation: Incarnation, reason: EndReason) {
        if let Some(sandbox) = self.find(&incarnation.sandbox) {
            return sandbox.ended(incarnation, reason);
        }
        // The word that a kill is done, which we were the ones to ask for.
        if reason == EndReason::Killed {
            return;
        }
        if let Err(error) = self.store.explain_loss(&incarnation, Ending::from(reason).text()).await {
            tracing::warn!(%incarnation, error = isopod_wire::error_chain(&error), "an ending was not recorded");
        }
    }
}

impl std::fmt::Debug for Fleet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Fleet").field("settings", &self.settings).finish_non_exhaustive()
    }
}
