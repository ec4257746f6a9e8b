//! Applies the outcome of an attempt to its node and to the run.
//!
//! The order: the attempt is closed and its tokens are counted. Delegation changes the graph. Then the node is done,
//! waits for a person, is tried again later, or has failed. A rule about failures applies before the failure counts.

use std::time::Duration;

use isopod_store::clock::Timestamp;
use isopod_store::{Action, EventKind, InvocationRow, NodeState, OnFailure};
use serde_json::{Value, json};
use tokio::task::JoinError;

use super::{End, Outcome, RunTask};

/// A longer output is truncated.
const MAX_OUTPUT: usize = 1 << 20;
const MAX_WAIT: Duration = Duration::from_secs(60);

impl RunTask {
    /// The task itself never fails, because panics in it are caught. It is aborted only after the run has ended.
    pub(super) fn settle_joined(&mut self, done: Result<(String, Outcome), JoinError>) {
        self.record_output();
        if let Ok((id, outcome)) = done {
            self.settle(&id, outcome);
        }
    }

    fn settle(&mut self, id: &str, outcome: Outcome) {
        if self.graph.get(id).is_none_or(|node| node.state != NodeState::Running) {
            return;
        }
        if outcome.is_begun {
            self.begun.insert(id.to_owned());
        }
        self.row.tokens_used = self.row.tokens_used.saturating_add(outcome.tokens);
        let soft = if outcome.success { self.soft_failure(id, &outcome) } else { None };
        let status = match (outcome.success, &soft) {
            (true, None) => "success",
            (true, Some(_)) => "paused",
            (false, _) => "failed",
        };
        self.close_attempt(id, status, &outcome);
        for call in &outcome.tool_calls {
            self.event(EventKind::ToolCall, Some(id), json!({ "tool": call }));
            self.apply_rules(EventKind::ToolCall, id, call);
        }
        match (outcome.success, soft) {
            (true, Some(reason)) => {
                self.with_node(id, |node| node.approved = false);
                self.hold(id, &reason);
            }
            (true, None) => self.complete(id, outcome),
            (false, _) => self.fail(id, outcome.error.unwrap_or_else(|| "the node failed without a reason".to_owned())),
        }
        self.check_budget();
    }

    fn complete(&mut self, id: &str, outcome: Outcome) {
        if let Some(delegation) = &outcome.delegation {
            self.delegate(id, delegation);
            if self.end.is_some() {
                return;
            }
        }
        self.move_node(id, NodeState::Done);
        let output = json!({
            "output": bounded(outcome.output),
            "thought_signature": outcome.signature,
            "cached_content_id": outcome.cached_content,
            "files_generated": outcome.files,
            "executed_tools": outcome.tools,
            "tokens_used": outcome.tokens,
        });
        self.with_node(id, |node| {
            node.output = Some(output.clone());
            node.error = None;
            node.ended_at = Some(Timestamp::now());
        });
        self.event(EventKind::AgentCompleted, Some(id), output.clone());
        self.apply_rules(EventKind::AgentCompleted, id, &output);
    }

    fn fail(&mut self, id: &str, error: String) {
        let Some(node) = self.nodes.get(id) else { return };
        let (attempts, retries) = (node.attempts, node.spec.retries);
        let will_retry = attempts <= retries;
        let data = json!({ "error": error, "attempt": attempts, "will_retry": will_retry });
        self.event(EventKind::AgentFailed, Some(id), data.clone());
        self.with_node(id, |node| node.error = Some(error.clone()));
        if will_retry {
            return self.try_again_later(id, attempts);
        }
        match self.matching_action(EventKind::AgentFailed, &data) {
            Some(Action::RequestApproval { reason }) => return self.hold(id, &reason),
            Some(Action::Interrupt { reason }) => return self.interrupt(&reason),
            Some(Action::SpawnAgent { agent_config }) => self.spawn_agent(id, *agent_config),
            None => {}
        }
        self.move_node(id, NodeState::Failed);
        self.with_node(id, |node| node.ended_at = Some(Timestamp::now()));
        if self.row.settings.on_failure == OnFailure::Stop && self.end.is_none() {
            self.end = Some(End::failed("node_failed", format!("node {id:?} failed: {error}")));
        }
    }

    fn try_again_later(&mut self, id: &str, attempts: u32) {
        let wait = self.shared.retry_wait.saturating_mul(1 << attempts.saturating_sub(1).min(16)).min(MAX_WAIT);
        self.move_node(id, NodeState::Pending);
        self.with_node(id, |node| node.next_at = Some(Timestamp::now().plus(wait)));
        self.retrying.insert(id.to_owned());
    }

    /// Records the result of the current attempt at this node.
    pub(super) fn close_attempt(&mut self, id: &str, status: &str, outcome: &Outcome) {
        let Some(open) = self.open.remove(id) else { return };
        let model = self.nodes.get(id).map_or("", |node| node.spec.model_text()).to_owned();
        let latency = u64::try_from(open.began.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.record_invocation(InvocationRow {
            id: open.id.clone(),
            number: open.number,
            node: id.to_owned(),
            body: json!({
                "id": open.id, "agent_id": id, "model_variant": model, "thought_signature": outcome.signature,
                "tools_used": outcome.tools, "tokens_used": outcome.tokens, "latency_ms": latency, "status": status,
                "timestamp": Timestamp::now(), "artifact_id": outcome.files.first(), "error_message": outcome.error,
            }),
        });
    }

    fn check_budget(&mut self) {
        let Some(budget) = self.row.settings.max_token_budget else { return };
        if self.row.tokens_used > budget && self.end.is_none() {
            let error = format!("{} tokens were used, and {budget} are allowed", self.row.tokens_used);
            self.end = Some(End::failed("budget_exceeded", error));
        }
    }

    /// The action of the first rule that applies.
    pub(super) fn matching_action(&self, kind: EventKind, data: &Value) -> Option<Action> {
        self.row.settings.rules.iter().find(|rule| rule.applies(kind, data)).map(|rule| rule.action.clone())
    }

    /// Applies a rule about something that has happened.
    fn apply_rules(&mut self, kind: EventKind, id: &str, data: &Value) {
        match self.matching_action(kind, data) {
            Some(Action::RequestApproval { reason }) if self.row.paused.is_none() => {
                self.event(EventKind::SystemIntervention, Some(id), json!({ "action": "pause", "reason": reason }));
                self.row.paused = Some(reason);
            }
            Some(Action::Interrupt { reason }) => self.interrupt(&reason),
            Some(Action::SpawnAgent { agent_config }) => self.spawn_agent(id, *agent_config),
            Some(Action::RequestApproval { .. }) | None => {}
        }
    }

    pub(super) fn interrupt(&mut self, reason: &str) {
        self.event(EventKind::SystemIntervention, None, json!({ "action": "interrupt", "reason": reason }));
        self.end.get_or_insert_with(|| End::failed("interrupted", reason));
    }
}

/// Limits the size of an output. A truncated one says so.
fn bounded(output: Value) -> Value {
    let text = output.to_string();
    if text.len() <= MAX_OUTPUT {
        return output;
    }
    let end = (0..=MAX_OUTPUT).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
    json!({ "truncated": true, "bytes": text.len(), "beginning": &text[..end] })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_huge_output_is_cut_and_says_so() {
        assert_eq!(bounded(json!("short")), json!("short"));
        let cut = bounded(json!("ä".repeat(MAX_OUTPUT)));
        assert_eq!((&cut["truncated"], cut["bytes"].as_u64()), (&json!(true), Some(2 * MAX_OUTPUT as u64 + 2)));
        assert!(cut.to_string().len() < MAX_OUTPUT + 100);
    }
}
