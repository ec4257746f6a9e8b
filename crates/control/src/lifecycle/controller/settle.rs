//! Calls to the node that take too long. They are never aborted. The caller gets a timeout error, and when the call
//! ends, the controller adopts the state that the node then reports.

use std::sync::Arc;
use std::time::Duration;

use isopod_store::{Ending, State};
use isopod_wire::node::{NodeApi, NodeError, NodeState, PauseMode};
use tokio::task::JoinHandle;

use super::{Controller, new_life};
use crate::lifecycle::handle::ActError;

/// A call that is still running.
pub(super) type Pending = JoinHandle<()>;

impl Controller {
    /// Calls the node and waits for its reply, up to the timeout.
    pub(super) async fn ask_node<T, F>(&mut self, call: impl FnOnce(Arc<dyn NodeApi>) -> F) -> Result<T, ActError>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, NodeError>> + Send + 'static,
    {
        self.ask_node_within(self.fleet.settings.node_timeout, call).await
    }

    /// Calls the node for something that takes longer the more memory a sandbox has.
    pub(super) async fn ask_node_for_memory<T, F>(
        &mut self,
        call: impl FnOnce(Arc<dyn NodeApi>) -> F,
    ) -> Result<T, ActError>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, NodeError>> + Send + 'static,
    {
        self.ask_node_within(self.fleet.settings.memory_timeout, call).await
    }

    async fn ask_node_within<T, F>(
        &mut self,
        limit: Duration,
        call: impl FnOnce(Arc<dyn NodeApi>) -> F,
    ) -> Result<T, ActError>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, NodeError>> + Send + 'static,
    {
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

    /// Adopts the node's state after a late call has ended.
    pub(super) async fn settle(&mut self) {
        self.pending = None;
        if !matches!(self.row.state, State::Pausing(_) | State::Resuming(_)) {
            return;
        }
        let found = self.fleet.node.list().await.into_iter().find(|found| found.incarnation.sandbox == self.row.id);
        let Some(found) = found else { return self.gone(Ending::Lost).await };
        self.row.execution = Some(found.incarnation.execution);
        match (found.state, self.row.state) {
            (NodeState::Frozen | NodeState::Saved, _) => self.paused(PauseMode::Memory).await,
            (NodeState::Stopped, _) => self.paused(PauseMode::Filesystem).await,
            (NodeState::Running, State::Resuming(_)) => self.resumed().await,
            (NodeState::Running, _) => self.mark_running().await,
        }
    }

    /// Marks the sandbox as running after a failed pause.
    pub(super) async fn mark_running(&mut self) {
        self.row.state = State::Running;
        if self.life.is_none() {
            self.life = new_life(&self.fleet, self.row.incarnation());
        }
        self.save_or_retry().await;
        self.publish();
    }
}

/// Waits until the call ends.
pub(super) async fn ended(pending: &mut Option<Pending>) {
    match pending {
        Some(call) => drop(call.await),
        None => std::future::pending().await,
    }
}
