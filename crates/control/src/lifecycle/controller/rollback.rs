//! Replaces the life of a running sandbox by one from a snapshot of it. Id, tokens, metadata and deadline stay.

use isopod_store::{Ending, EventType, Level, SnapshotSource, State};
use isopod_wire::node::{InitialSnapshot, NodeError, PauseMode};
use serde_json::json;

use super::{Controller, new_life};
use crate::lifecycle::handle::ActError;
use crate::lifecycle::rules::{Refusal, Request};

impl Controller {
    /// Without `has_memory`, only its files are used.
    pub(super) async fn rollback(&mut self, snapshot: SnapshotSource) -> Result<(), ActError> {
        self.decide(Request::Rollback)?;
        let incarnation = self.incarnation()?;
        self.fetch_last_output().await;
        // New traffic waits for the outcome, as during a pause. Open streams end only if the life is replaced.
        let life = self.life.take();
        let mut intent = self.row.clone();
        intent.state = State::Resuming(if snapshot.has_memory { PauseMode::Memory } else { PauseMode::Filesystem });
        if let Err(error) = self.save_intent(intent).await {
            self.life = life;
            return Err(error);
        }
        let initial = InitialSnapshot { id: snapshot.id, files_only: !snapshot.has_memory };
        let replaced =
            self.ask_node_for_memory(move |node| async move { node.rollback(&incarnation, &initial).await }).await;
        self.life = life;
        match replaced {
            Ok(incarnation) => {
                self.cut_traffic();
                self.row.execution = Some(incarnation.execution);
                self.rolled_back().await;
                Ok(())
            }
            Err(error) => self.not_rolled_back(error).await,
        }
    }

    async fn rolled_back(&mut self) {
        self.row.state = State::Running;
        self.life = new_life(&self.fleet, self.row.incarnation());
        self.save_or_retry().await;
        self.publish();
        self.fleet.journal.line(&self.row.id, Level::Info, "sandbox rolled back to a snapshot", &[]);
        self.fleet.journal.event(EventType::Updated, &self.row, json!({ "updated": "rollback" }));
    }

    async fn not_rolled_back(&mut self, error: ActError) -> Result<(), ActError> {
        match &error {
            ActError::Node(NodeError::NotFound(_)) => {
                self.gone(Ending::Lost).await;
                return Err(ActError::Refused(Refusal::NotFound));
            }
            // The result of a call that is still running is not known yet: the streams end, and `settle` finds out.
            ActError::NodeTimeout(_) => self.cut_traffic(),
            // It goes on as before.
            ActError::Node(NodeError::Memory { .. } | NodeError::NoMemory { .. } | NodeError::WrongState { .. }) => {
                self.mark_running().await;
            }
            // Only the node knows which life there is.
            _ => {
                self.cut_traffic();
                self.settle().await;
            }
        }
        Err(error)
    }
}
