//! Calls to the node that take too long. They are never broken off half way; their caller is told that it did not
//! hear in time, and when they end at last the sandbox becomes what the node then has.

use std::sync::Arc;

use isopod_store::{Ending, State};
use isopod_wire::node::{NodeApi, NodeError, NodeState, PauseMode};
use tokio::task::JoinHandle;

use super::{Controller, new_life};
use crate::lifecycle::handle::ActError;

/// A call that is still under way.
pub(super) type Pending = JoinHandle<()>;

impl Controller {
    /// Asks the node and waits for its answer, but not for ever.
    pub(super) async fn ask_node<T, F>(&mut self, call: impl FnOnce(Arc<dyn NodeApi>) -> F) -> Result<T, ActError>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, NodeError>> + Send + 'static,
    {
        let limit = self.fleet.settings.node_timeout;
        let mut asking = tokio::spawn(call(Arc::clone(&self.fleet.node)));
        match tokio::time::timeout(limit, &mut asking).await {
            Ok(Ok(answer)) => answer.map_err(ActError::Node),
            Ok(Err(_)) => Err(ActError::NodePanicked),
            Err(_) => {
                self.pending = Some(tokio::spawn(async move { drop(asking.await) }));
                Err(ActError::NodeTimeout(limit))
            }
        }
    }

    /// A late call has ended: goes by what the node has now.
    pub(super) async fn settle(&mut self) {
        self.pending = None;
        if !matches!(self.row.state, State::Pausing(_) | State::Resuming(_)) {
            return;
        }
        let found = self.fleet.node.list().await.into_iter().find(|found| found.incarnation.sandbox == self.row.id);
        let Some(found) = found else { return self.gone(Ending::Lost).await };
        self.row.execution = Some(found.incarnation.execution);
        match (found.state, self.row.state) {
            (NodeState::Frozen, _) => self.paused(PauseMode::Memory).await,
            (NodeState::Stopped, _) => self.paused(PauseMode::Filesystem).await,
            (NodeState::Running, State::Resuming(_)) => self.resumed().await,
            (NodeState::Running, _) => self.runs_on().await,
        }
    }

    /// A pause came to nothing.
    pub(super) async fn runs_on(&mut self) {
        self.row.state = State::Running;
        if self.life.is_none() {
            self.life = new_life(&self.fleet, self.row.incarnation());
        }
        self.save_or_retry().await;
        self.publish();
    }
}

/// Ends when the call does.
pub(super) async fn ended(pending: &mut Option<Pending>) {
    match pending {
        Some(call) => drop(call.await),
        None => std::future::pending().await,
    }
}
