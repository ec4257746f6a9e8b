//! Rules of a workflow, each with an event, a condition and an action.
//!
//! A rule applies to one kind of event. Its condition is a text that the event must contain, or `*`. Rules for
//! `AgentFailed` are evaluated before the failure takes effect, so asking a person has priority over failing the run.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use super::event::EventKind;
use super::node_spec::NodeSpec;

/// One rule.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = WorkflowRule)]
pub struct Rule {
    pub id: String,
    #[serde(default)]
    pub name: String,
    pub trigger_event: EventKind,
    pub condition: String,
    pub action: Action,
}

/// The action of a rule.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", deny_unknown_fields)]
#[schema(as = RuleAction)]
pub enum Action {
    /// Ends the run.
    Interrupt {
        #[serde(default)]
        reason: String,
    },
    /// Starts nothing more until a person approves.
    RequestApproval {
        #[serde(default)]
        reason: String,
    },
    /// Adds a node after the one that the event is about.
    SpawnAgent { agent_config: Box<NodeSpec> },
}

impl Rule {
    /// The default rules of the agent kernel. A workflow enables them with `default_rules: true`.
    pub fn defaults() -> Vec<Self> {
        let ask = |id: &str, trigger_event, condition: &str, reason: &str| Self {
            id: id.to_owned(),
            name: String::new(),
            trigger_event,
            condition: condition.to_owned(),
            action: Action::RequestApproval { reason: reason.to_owned() },
        };
        vec![
            ask("guard_fs_delete", EventKind::ToolCall, "rm -rf", "files are about to be deleted"),
            ask("guard_sudo_access", EventKind::ToolCall, "sudo", "a command wants to be root"),
            ask("guard_execution_failure", EventKind::AgentFailed, "*", "a node has failed"),
        ]
    }

    pub fn applies(&self, kind: EventKind, data: &Value) -> bool {
        self.trigger_event == kind && (self.condition == "*" || contains(data, &self.condition))
    }
}

/// Searches all texts in the value, before JSON escaping.
fn contains(value: &Value, wanted: &str) -> bool {
    match value {
        Value::String(text) => text.contains(wanted),
        Value::Array(list) => list.iter().any(|item| contains(item, wanted)),
        Value::Object(fields) => fields.values().any(|field| contains(field, wanted)),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn rules_apply_to_their_event_and_text() {
        let rules = Rule::defaults();
        let hit = |kind, data: Value| {
            rules.iter().filter(|rule| rule.applies(kind, &data)).map(|rule| rule.id.as_str()).collect::<Vec<_>>()
        };
        assert_eq!(
            hit(EventKind::ToolCall, json!({ "args": ["sudo rm -rf /"] })),
            ["guard_fs_delete", "guard_sudo_access"]
        );
        assert_eq!(hit(EventKind::AgentCompleted, json!("sudo")), [""; 0]);
        assert_eq!(hit(EventKind::AgentFailed, json!(null)), ["guard_execution_failure"]);
    }

    #[test]
    fn a_rule_is_read_from_json() {
        let rule = json!({ "id": "r", "trigger_event": "AgentCompleted", "condition": "*",
            "action": { "type": "SpawnAgent", "agent_config": { "id": "x", "command": "true" } } });
        assert!(serde_json::from_value::<Rule>(rule).is_ok());
        let unknown =
            json!({ "id": "r", "trigger_event": "Whatever", "condition": "*", "action": { "type": "Interrupt" } });
        assert!(serde_json::from_value::<Rule>(unknown).is_err());
    }
}
