//! Starts the nodes that are ready, in the order of the graph.

use std::time::Instant;

use isopod_store::clock::Timestamp;
use isopod_store::secrets::new_uuid;
use isopod_store::{Action, EventKind, InvocationRow, NodeRow, NodeState, Work};
use serde_json::{Value, json};

use super::{OpenAttempt, RunTask};

/// How many nodes of a run execute at the same time. They share a sandbox, so more would mostly wait for each other.
const MAX_AT_ONCE: usize = 32;

impl RunTask {
    pub(super) fn start_ready(&mut self) {
        while self.end.is_none() && self.row.paused.is_none() {
            let free = MAX_AT_ONCE.saturating_sub(self.graph.running());
            let now = Timestamp::now();
            let is_due = |id: &&str| {
                !self.retrying.contains(*id)
                    || self.nodes.get(*id).is_some_and(|node| node.next_at.is_none_or(|at| at <= now))
            };
            let ready: Vec<String> = match self.alone() {
                Some(alone) => self.graph.ready().filter(|id| *id == alone).filter(is_due).map(str::to_owned).collect(),
                None => self.graph.ready().filter(is_due).take(free).map(str::to_owned).collect(),
            };
            if ready.is_empty() {
                return;
            }
            for id in ready {
                if self.must_wait(&id) {
                    return;
                }
                self.start_or_hold(&id);
            }
        }
    }

    /// The node beside which no other may run, because going back to its checkpoint would undo what they did.
    fn alone(&self) -> Option<&str> {
        let is_begun =
            |node: &NodeRow| node.started_at.is_some() && !matches!(node.state, NodeState::Done | NodeState::Failed);
        let is_alone = |node: &&NodeRow| node.spec.checkpoint && is_begun(node);
        self.nodes.values().find(is_alone).map(|node| node.spec.id.as_str())
    }

    /// Whether this node and all after it wait until those that run are done.
    fn must_wait(&self, id: &str) -> bool {
        let wants_to_be_alone = self.nodes.get(id).is_some_and(|node| node.spec.checkpoint);
        self.graph.running() > 0 && (wants_to_be_alone || self.alone().is_some())
    }

    fn start_or_hold(&mut self, id: &str) {
        if self.end.is_some() || self.row.paused.is_some() {
            return;
        }
        let Some(node) = self.nodes.get(id) else { return };
        let (approved, wants_approval) = (node.approved, node.spec.approval);
        if !approved {
            if wants_approval {
                return self.hold(id, "the node needs approval before it starts");
            }
            if self.is_context_drought(id) {
                return self.hold(id, "context drought: the nodes that it depends on gave no output");
            }
        }
        if let Some((tool, call)) = self.tool_call_of(id) {
            self.event(EventKind::ToolCall, Some(id), json!({ "tool": tool, "args": call }));
            if !approved && self.is_held_by_rule(id, &json!({ "tool": tool, "args": call })) {
                return;
            }
        }
        self.start_node(id);
    }

    /// Applies a rule about this call before the call.
    fn is_held_by_rule(&mut self, id: &str, data: &Value) -> bool {
        match self.matching_action(EventKind::ToolCall, data) {
            Some(Action::RequestApproval { reason }) => self.hold(id, &reason),
            Some(Action::Interrupt { reason }) => self.interrupt(&reason),
            Some(Action::SpawnAgent { .. }) | None => return false,
        }
        true
    }

    fn start_node(&mut self, id: &str) {
        let now = Timestamp::now();
        self.retrying.remove(id);
        self.move_node(id, NodeState::Running);
        self.with_node(id, |node| {
            node.attempts += 1;
            node.started_at = Some(now);
            node.next_at = None;
            node.error = None;
        });
        let attempt = self.nodes.get(id).map_or(1, |node| node.attempts);
        let open = OpenAttempt { id: new_uuid(), number: self.next_invocation, began: Instant::now() };
        self.next_invocation += 1;
        let model = self.nodes.get(id).map_or("", |node| node.spec.model_text()).to_owned();
        self.record_invocation(InvocationRow {
            id: open.id.clone(),
            number: open.number,
            node: id.to_owned(),
            body: json!({
                "id": open.id, "agent_id": id, "model_variant": model, "thought_signature": null, "tools_used": [],
                "tokens_used": 0, "latency_ms": 0, "status": "running", "timestamp": now, "artifact_id": null,
                "error_message": null,
            }),
        });
        self.record_service_of(id);
        self.event(EventKind::AgentStarted, Some(id), json!({ "attempt": attempt, "invocation_id": open.id }));
        self.open.insert(id.to_owned(), open);
        self.changes.started.push(id.to_owned());
    }

    /// Records the service of an agent before it is called.
    fn record_service_of(&mut self, id: &str) {
        let Some(Work::Agent { url }) = self.nodes.get(id).map(|node| node.spec.work()) else { return };
        let service = self.shared.agents.service_of(url);
        self.changes.services.push(service);
    }

    /// The tool call that a code or command node is about to make. Agents report theirs afterwards.
    pub(super) fn tool_call_of(&self, id: &str) -> Option<(&'static str, Value)> {
        match self.nodes.get(id)?.spec.work() {
            Work::Code { code, language } => Some(("execute_python", json!({ "code": code, "language": language }))),
            Work::Command(command) => Some(("run_command", json!({ "command": command }))),
            Work::Agent { .. } => None,
        }
    }

    /// Holds a node until a person approves it.
    pub(super) fn hold(&mut self, id: &str, reason: &str) {
        self.move_node(id, NodeState::Waiting);
        let data = json!({ "action": "pause", "reason": reason });
        self.event(EventKind::SystemIntervention, Some(id), data);
    }
}
