//! Ending a sandbox: fetch the last output, cut the traffic, remove everything on the node, then record the reason.

use isopod_store::clock::Timestamp;
use isopod_store::{Ending, EventType, Level, State};
use isopod_wire::node::{EndReason, Incarnation, NodeError};
use serde_json::json;
use tokio::time::Instant;

use super::{Controller, RETRY_AFTER};
use crate::lifecycle::handle::ActError;
use crate::lifecycle::rules::{Request, Step};

impl Controller {
    /// Removes the sandbox. If the node fails, the controller retries until it succeeds.
    pub(super) async fn end(&mut self, reason: Ending) -> Result<(), ActError> {
        let Step::End(reason) = self.decide(Request::End(reason))? else { return Ok(()) };
        self.fetch_last_output().await;
        // Before the write to the store: a client that the edge tells that the sandbox is gone must get the same answer
        // from the API.
        self.end_life(State::Ending(reason));
        // A failing store must not keep a sandbox alive. Without the record, the next server finds the sandbox lost.
        self.save_or_retry().await;
        if let Some(incarnation) = self.row.incarnation() {
            match self.ask_node(|node| async move { node.kill(&incarnation).await }).await {
                Ok(()) | Err(ActError::Node(NodeError::NotFound(_))) => {}
                Err(error) => {
                    self.retry = Some(Instant::now() + RETRY_AFTER);
                    return Err(error);
                }
            }
        }
        self.gone(reason).await;
        Ok(())
    }

    /// Handles the end of a life that the node reports. A late report about an earlier life is ignored.
    pub(super) async fn node_ended(&mut self, incarnation: &Incarnation, reason: EndReason) {
        if self.row.execution.as_ref() != Some(&incarnation.execution) {
            return;
        }
        // A removal in progress has its own reason.
        match self.row.state {
            State::Ended(_) => {}
            State::Ending(first) => self.gone(first).await,
            _ => self.gone(Ending::from(reason)).await,
        }
    }

    /// Ends a sandbox that vanished from the node without a report. Skipped during calls to the node, because they
    /// report their own result.
    pub(super) async fn verify(&mut self) -> bool {
        if !matches!(self.row.state, State::Running | State::Paused(_)) || self.pending.is_some() {
            return false;
        }
        let is_there = self.fleet.node.list().await.iter().any(|found| found.incarnation.sandbox == self.row.id);
        if !is_there {
            self.gone(Ending::Lost).await;
        }
        !is_there
    }

    /// Records that nothing of the sandbox is left on the node.
    pub(super) async fn gone(&mut self, reason: Ending) {
        self.fleet.remove(&self.row.id);
        self.row.ended_at = Some(Timestamp::now());
        self.slot = None;
        self.retry = None;
        self.end_life(State::Ended(reason));
        self.save_or_retry().await;
        let level = if matches!(reason, Ending::Killed | Ending::Timeout) { Level::Info } else { Level::Error };
        self.fleet.counters.ended(reason.text());
        self.fleet.journal.line(&self.row.id, level, "sandbox ended", &[("reason", reason.text().to_owned())]);
        self.fleet.journal.event(EventType::Killed, &self.row, json!({ "reason": reason.text() }));
    }
}
