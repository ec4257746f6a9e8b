//! One node of a workflow: what it does, when, and how often.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

/// A node as the user writes it, and as it is stored with its run. `input_schema`, `output_schema`, `role`,
/// `cache_policy` and `position` are the author's notes. They are stored and returned but have no effect here.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
#[schema(as = WorkflowNode)]
pub struct NodeSpec {
    #[schema(required, min_length = 1, max_length = 128)]
    pub id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// The language of the code. The default is Python.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub language: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    /// The URL of the agent, to which `/invoke` is appended.
    #[serde(skip_serializing_if = "Option::is_none", alias = "url")]
    pub agent: Option<String>,
    pub depends_on: Vec<String>,
    #[schema(maximum = 100)]
    pub retries: u32,
    /// The time limit of one attempt, in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(exclusive_minimum = 0)]
    pub timeout: Option<f64>,
    /// Whether to undo what a failed attempt has done in the sandbox, before the next one.
    pub checkpoint: bool,
    /// Whether a person must approve it before it starts.
    pub approval: bool,
    pub prompt: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub role: Option<Role>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tools: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input_schema: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_schema: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache_policy: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub position: Option<Value>,
    pub accepts_directive: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user_directive: Option<String>,
    pub allow_delegation: bool,
}

/// The role of an agent among the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
#[schema(as = AgentRole)]
pub enum Role {
    Orchestrator,
    Worker,
    Observer,
}

/// What a node does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work<'a> {
    Code {
        code: &'a str,
        language: Option<&'a str>,
    },
    Command(&'a str),
    /// Without a URL, this is the agent service from the server's configuration.
    Agent {
        url: Option<&'a str>,
    },
}

/// The default time limit of one attempt.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(300);

impl NodeSpec {
    pub fn work(&self) -> Work<'_> {
        match (&self.code, &self.command) {
            (Some(code), _) => Work::Code { code, language: self.language.as_deref() },
            (None, Some(command)) => Work::Command(command),
            (None, None) => Work::Agent { url: self.agent.as_deref() },
        }
    }

    pub fn attempt_timeout(&self) -> Duration {
        self.timeout.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()).unwrap_or(DEFAULT_TIMEOUT)
    }

    /// The name of its model in the state of a run.
    pub fn model_text(&self) -> &str {
        match self.work() {
            Work::Code { .. } => "code",
            Work::Command(_) => "command",
            Work::Agent { .. } => self.model.as_deref().unwrap_or("fast"),
        }
    }
}
