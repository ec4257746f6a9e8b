//! State shared by the tasks of all runs.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use isopod_store::{RunId, Store, TeamId};
use tokio::sync::{Notify, mpsc, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::agent::Agents;
use super::engine::Request;
use super::executor::Executor;
use super::ledger::Ledger;
use super::live_logs::LiveLogs;
use super::live_output::LiveOutput;
use super::mirror::Mirror;

pub(crate) struct Shared {
    pub(super) store: Store,
    pub(super) ledger: Arc<dyn Ledger>,
    pub(super) executor: Arc<dyn Executor>,
    pub(super) agents: Agents,
    pub(super) mirror: Mirror,
    pub(super) live_logs: LiveLogs,
    /// The wait before the second attempt at a node. It doubles before each further one.
    pub(super) retry_wait: Duration,
    /// How long a call may take beyond the timeout of its node, which the executor enforces itself.
    pub(super) overtime: Duration,
    /// The wait before the second attempt at a cleanup. It doubles before each further one, up to a minute.
    pub(super) cleanup_wait: Duration,
    /// How long after the first failed attempt an agent service may still confirm a cleanup.
    pub(super) cleanup_deadline: Duration,
    pub(super) stop: CancellationToken,
    pub(super) tasks: TaskTracker,
    /// Notified when a run has ended.
    pub(super) cleanup_wanted: Notify,
    /// Runs that have a task. Written when one starts or ends, and locked only briefly.
    live: Mutex<HashMap<RunId, LiveRun>>,
}

/// The channels of a run's task.
#[derive(Clone, Debug)]
pub(super) struct LiveRun {
    pub(super) commands: mpsc::Sender<Request>,
    pub(super) seen: watch::Receiver<i64>,
    pub(super) team: TeamId,
    pub(super) output: Arc<LiveOutput>,
}

/// The parts of a server's runs.
pub(crate) struct RunParts {
    pub(crate) store: Store,
    pub(crate) ledger: Arc<dyn Ledger>,
    pub(crate) executor: Arc<dyn Executor>,
    pub(crate) agents: Agents,
    pub(crate) mirror: Mirror,
    pub(crate) live_logs: LiveLogs,
    pub(crate) retry_wait: Duration,
    pub(crate) overtime: Duration,
    pub(crate) cleanup_wait: Duration,
    pub(crate) cleanup_deadline: Duration,
    pub(crate) stop: CancellationToken,
}

impl Shared {
    pub(super) fn new(parts: RunParts) -> Self {
        Self {
            store: parts.store,
            ledger: parts.ledger,
            executor: parts.executor,
            agents: parts.agents,
            mirror: parts.mirror,
            live_logs: parts.live_logs,
            retry_wait: parts.retry_wait,
            overtime: parts.overtime,
            cleanup_wait: parts.cleanup_wait,
            cleanup_deadline: parts.cleanup_deadline,
            stop: parts.stop,
            tasks: TaskTracker::new(),
            cleanup_wanted: Notify::new(),
            live: Mutex::default(),
        }
    }

    pub(super) fn find(&self, id: &RunId) -> Option<LiveRun> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner).get(id).cloned()
    }

    /// Returns false if the run already has a task.
    pub(super) fn add(&self, id: &RunId, run: LiveRun) -> bool {
        let mut live = self.live.lock().unwrap_or_else(PoisonError::into_inner);
        if live.contains_key(id) {
            return false;
        }
        live.insert(id.clone(), run);
        true
    }

    pub(super) fn remove(&self, id: &RunId) {
        self.live.lock().unwrap_or_else(PoisonError::into_inner).remove(id);
    }
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("agents", &self.agents).finish_non_exhaustive()
    }
}
