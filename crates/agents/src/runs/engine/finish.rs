//! Ends a run: aborts what is running, and records the terminal state together with the cleanup.

use isopod_store::clock::Timestamp;
use isopod_store::{AgentService, EventKind, NodeState, RunStatus};
use serde_json::json;

use super::{Outcome, RunTask};

/// How a run ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Completed,
    Failed {
        /// One word for programs.
        reason: &'static str,
        error: String,
    },
}

impl End {
    pub(super) fn failed(reason: &'static str, error: impl Into<String>) -> Self {
        Self::Failed { reason, error: error.into() }
    }

    pub(super) fn blocked(nodes: &[String]) -> Self {
        let named = nodes.iter().take(10).cloned().collect::<Vec<_>>().join(", ");
        let more = if nodes.len() > 10 { format!(" and {} more", nodes.len() - 10) } else { String::new() };
        Self::failed("blocked", format!("these nodes have failed or cannot start: {named}{more}"))
    }
}

impl RunTask {
    /// Aborts what is running and writes the end into the row. The next turn records it.
    pub(super) async fn finish(&mut self) {
        // This comes before the end is recorded, so that nothing of this run can use a sandbox after its cleanup has
        // started.
        self.performing.shutdown().await;
        self.record_output();
        self.changes.started.clear();
        self.close_running();
        let Some(end) = self.end.clone() else { return };
        let (status, reason, error) = match end {
            End::Completed => (RunStatus::Completed, "completed", None),
            End::Failed { reason, error } => (RunStatus::Failed, reason, Some(error)),
        };
        // The agent service of the settings is told of every run, because agents may have used it by themselves.
        if self.shared.agents.has_service() {
            self.changes.services.push(AgentService::Configured);
        }
        let data = json!({ "status": status.text(), "reason": reason, "error": error });
        self.event(EventKind::RunEnded, None, data);
        self.row.status = status;
        self.row.reason = Some(reason.to_owned());
        self.row.error = error;
        self.row.paused = None;
        self.row.ended_at = Some(Timestamp::now());
    }

    fn close_running(&mut self) {
        let running = self.graph.nodes().iter().filter(|node| node.state == NodeState::Running);
        for id in running.map(|node| node.id.clone()).collect::<Vec<_>>() {
            let error = "the run ended before the node did".to_owned();
            self.close_attempt(&id, "failed", &Outcome { error: Some(error.clone()), ..Outcome::default() });
            self.move_node(&id, NodeState::Failed);
            self.with_node(&id, |node| {
                node.error = Some(error);
                node.ended_at = Some(Timestamp::now());
            });
        }
    }
}
