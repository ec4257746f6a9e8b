//! Soft failures: replies of agents that report success but contain nothing. The run asks a person instead of
//! continuing with them.

use isopod_store::Work;
use serde_json::Value;

use super::{Outcome, RunTask};

/// An agent that says this has found nothing.
const NULL_STATUS: &str = "[STATUS: NULL]";
/// An agent that says this skipped its tools on purpose.
const BYPASS: &str = "[BYPASS:";

impl RunTask {
    /// Why a reply counts as a soft failure.
    pub(super) fn soft_failure(&self, id: &str, outcome: &Outcome) -> Option<String> {
        if !self.is_watched_agent(id) {
            return None;
        }
        let text = outcome.output.to_string();
        if text.contains(NULL_STATUS) {
            return Some("the agent returned [STATUS: NULL]".to_owned());
        }
        let wanted: &[&str] = match id.split('_').next() {
            Some("research") if id.contains('_') => &["web_search"],
            Some("analyze" | "coder") if id.contains('_') => &["execute_python", "write_file"],
            _ => return None,
        };
        let used_one = outcome.tools.iter().any(|tool| wanted.contains(&tool.as_str()));
        if used_one || text.contains(BYPASS) {
            return None;
        }
        Some(format!("the agent used none of {}", wanted.join(", ")))
    }

    /// Whether a node is about to start although the nodes that it depends on gave no output.
    pub(super) fn is_context_drought(&self, id: &str) -> bool {
        let Some(node) = self.nodes.get(id) else { return false };
        let parents = &node.spec.depends_on;
        let gave_nothing = |parent: &String| {
            let output = self.nodes.get(parent).and_then(|parent| parent.output.as_ref());
            output.is_none_or(|output| is_empty(&output["output"]) && is_empty(&output["files_generated"]))
        };
        self.is_watched_agent(id) && !parents.is_empty() && parents.iter().all(gave_nothing)
    }

    fn is_watched_agent(&self, id: &str) -> bool {
        let is_agent = self.nodes.get(id).is_some_and(|node| matches!(node.spec.work(), Work::Agent { .. }));
        is_agent && self.row.settings.soft_failures
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => text.trim().is_empty(),
        Value::Array(list) => list.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        _ => false,
    }
}
