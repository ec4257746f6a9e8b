//! The changes of a turn.

use std::collections::BTreeSet;

use isopod_store::clock::Timestamp;
use isopod_store::{AgentService, EventKind, InvocationRow, NodeRow, NodeState, RunEvent, RunTurn};
use serde_json::Value;
use tokio::sync::oneshot;

use super::RunTask;
use super::handle::Refusal;

type Answer = Result<(), Refusal>;

#[derive(Debug, Default)]
pub(super) struct Changes {
    nodes: BTreeSet<String>,
    removed: Vec<String>,
    invocations: Vec<InvocationRow>,
    events: Vec<RunEvent>,
    /// Agent services to record, so that they are told of the end.
    pub(super) services: Vec<AgentService>,
    /// Nodes to start once the turn is recorded.
    pub(super) started: Vec<String>,
    /// Replies to send once the turn is recorded.
    pub(super) replies: Vec<(oneshot::Sender<Answer>, Answer)>,
}

impl RunTask {
    pub(super) fn event(&mut self, kind: EventKind, node: Option<&str>, data: Value) {
        self.row.last_seq += 1;
        let node = node.map(str::to_owned);
        self.changes.events.push(RunEvent { seq: self.row.last_seq, at: Timestamp::now(), kind, node, data });
    }

    /// Changes the state of a node in the graph and in its row.
    pub(super) fn move_node(&mut self, id: &str, state: NodeState) {
        self.graph.set(id, state);
        self.with_node(id, |node| node.state = state);
    }

    /// Changes a node's row.
    pub(super) fn with_node(&mut self, id: &str, change: impl FnOnce(&mut NodeRow)) {
        if let Some(node) = self.nodes.get_mut(id) {
            change(node);
            self.changes.nodes.insert(id.to_owned());
        }
    }

    pub(super) fn add_node(&mut self, node: NodeRow) {
        let id = node.spec.id.clone();
        self.changes.nodes.insert(id.clone());
        self.nodes.insert(id, node);
    }

    pub(super) fn remove_node(&mut self, id: &str) {
        self.nodes.remove(id);
        self.changes.nodes.remove(id);
        self.changes.removed.push(id.to_owned());
    }

    pub(super) fn record_invocation(&mut self, invocation: InvocationRow) {
        self.changes.invocations.push(invocation);
    }

    pub(super) fn take_turn(&mut self) -> RunTurn {
        let nodes = std::mem::take(&mut self.changes.nodes);
        RunTurn {
            run: self.row.clone(),
            nodes: nodes.iter().filter_map(|id| self.nodes.get(id)).cloned().collect(),
            removed: std::mem::take(&mut self.changes.removed),
            invocations: std::mem::take(&mut self.changes.invocations),
            events: std::mem::take(&mut self.changes.events),
            services: std::mem::take(&mut self.changes.services),
        }
    }
}
