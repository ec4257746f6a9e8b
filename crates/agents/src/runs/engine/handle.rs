//! Commands for a run: stop, resume, approve or reject.

use isopod_store::{EventKind, NodeState};
use serde_json::json;
use tokio::sync::oneshot;

use super::{End, RunTask};

/// A command, and the channel for the reply once it is recorded.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) command: Command,
    pub(crate) reply: oneshot::Sender<Result<(), Refusal>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Command {
    Stop,
    /// The run's sandbox was cleaned up by a caller who may do that.
    Cancel,
    /// Everything that waits for a person continues.
    Resume,
    /// One node, or all that wait.
    Approve {
        node: Option<String>,
        approved: bool,
    },
}

/// Why a run refuses a command.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Refusal {
    #[error("there is no such run")]
    NotFound,
    #[error("the run has ended")]
    Ended,
    #[error("the run is not paused")]
    NotPaused,
    #[error("node {0:?} does not wait for an approval")]
    NotWaiting(String),
    #[error("the server is stopping")]
    Stopping,
}

impl RunTask {
    pub(super) fn handle(&mut self, request: Request) {
        let answer = match request.command {
            Command::Stop => self.end_by_command("stopped", "the run was stopped"),
            Command::Cancel => self.end_by_command("cancelled", "the run's sandbox was cleaned up while it ran"),
            Command::Resume => self.resume(None),
            Command::Approve { node, approved: true } => self.resume(node),
            Command::Approve { node, approved: false } => self.reject(node),
        };
        self.changes.replies.push((request.reply, answer));
    }

    fn end_by_command(&mut self, reason: &'static str, error: &str) -> Result<(), Refusal> {
        self.end = Some(End::failed(reason, error));
        Ok(())
    }

    fn resume(&mut self, node: Option<String>) -> Result<(), Refusal> {
        let waiting = self.waiting(node.as_deref())?;
        for id in &waiting {
            self.move_node(id, NodeState::Pending);
            self.with_node(id, |node| {
                node.approved = true;
                node.next_at = None;
            });
        }
        if node.is_none() {
            self.row.paused = None;
        }
        self.event(EventKind::SystemIntervention, None, json!({ "action": "resume", "nodes": waiting }));
        Ok(())
    }

    fn reject(&mut self, node: Option<String>) -> Result<(), Refusal> {
        let waiting = self.waiting(node.as_deref())?;
        self.event(EventKind::SystemIntervention, None, json!({ "action": "reject", "nodes": waiting }));
        self.end = Some(End::failed("rejected", "the run was not approved"));
        Ok(())
    }

    /// The waiting nodes, or only the named one.
    fn waiting(&self, named: Option<&str>) -> Result<Vec<String>, Refusal> {
        if let Some(id) = named {
            let waits = self.graph.get(id).is_some_and(|node| node.state == NodeState::Waiting);
            return if waits { Ok(vec![id.to_owned()]) } else { Err(Refusal::NotWaiting(id.to_owned())) };
        }
        if self.row.paused.is_none() && self.graph.waiting() == 0 {
            return Err(Refusal::NotPaused);
        }
        let waiting = self.graph.nodes().iter().filter(|node| node.state == NodeState::Waiting);
        Ok(waiting.map(|node| node.id.clone()).collect())
    }
}
