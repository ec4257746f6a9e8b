//! The messages to and from agents, field by field as in the agent kernel.

use isopod_store::NodeSpec;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::names;
use crate::runs::graph::Strategy;

/// The request that invokes an agent.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = AgentInvocation)]
pub(crate) struct Invocation {
    pub(crate) run_id: String,
    pub(crate) agent_id: String,
    pub(crate) model: String,
    pub(crate) prompt: String,
    pub(crate) user_directive: String,
    /// The outputs of the nodes that this one depends on, by their ids.
    #[schema(value_type = Object)]
    pub(crate) input_data: Map<String, Value>,
    pub(crate) parent_signature: Option<String>,
    pub(crate) cached_content_id: Option<String>,
    pub(crate) thinking_level: Option<u32>,
    pub(crate) file_paths: Vec<String>,
    pub(crate) tools: Vec<String>,
    pub(crate) allow_delegation: bool,
    pub(crate) graph_view: String,
}

/// The reply of an agent. Other fields are ignored.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct AgentReply {
    pub(crate) success: bool,
    #[serde(default)]
    pub(crate) output: Value,
    #[serde(default)]
    pub(crate) error: Option<String>,
    #[serde(default)]
    tokens_used: Option<u64>,
    #[serde(default)]
    input_tokens: Option<u64>,
    #[serde(default)]
    output_tokens: Option<u64>,
    #[serde(default)]
    pub(crate) thought_signature: Option<String>,
    #[serde(default)]
    pub(crate) cached_content_id: Option<String>,
    #[serde(default)]
    executed_tools: Option<Vec<Value>>,
    #[serde(default)]
    pub(crate) delegation: Option<Delegation>,
}

/// An agent's request for further nodes.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Delegation {
    #[serde(default)]
    pub(crate) reason: String,
    #[serde(default)]
    pub(crate) new_nodes: Vec<NodeSpec>,
    #[serde(default)]
    strategy: StrategyName,
    #[serde(default)]
    pub(crate) prune_nodes: Vec<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum StrategyName {
    #[default]
    Child,
    Sibling,
}

impl AgentReply {
    pub(crate) fn tokens(&self) -> u64 {
        let parts = self.input_tokens.unwrap_or(0).saturating_add(self.output_tokens.unwrap_or(0));
        self.tokens_used.unwrap_or(parts)
    }

    pub(crate) fn tools(&self) -> Vec<String> {
        names(self.executed_tools.as_deref().unwrap_or_default())
    }

    /// The raw calls, for events.
    pub(crate) fn tool_calls(&self) -> &[Value] {
        self.executed_tools.as_deref().unwrap_or_default()
    }

    /// Files that the agent reports as generated.
    pub(crate) fn files(&self) -> Vec<String> {
        let list = self.output.get("files_generated").and_then(Value::as_array);
        list.map(|list| names(list)).unwrap_or_default()
    }
}

impl Delegation {
    pub(crate) fn strategy(&self) -> Strategy {
        match self.strategy {
            StrategyName::Child => Strategy::Child,
            StrategyName::Sibling => Strategy::Sibling,
        }
    }
}
