//! What happens in a run, in the words of the agent kernel. Events are numbered within their run and stored with the
//! state that they tell of, so a watcher that comes later misses nothing.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::clock::Timestamp;

/// Kinds of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum EventKind {
    RunStarted,
    NodeCreated,
    AgentStarted,
    AgentCompleted,
    AgentFailed,
    ToolCall,
    SystemIntervention,
    IntermediateLog,
    RunEnded,
}

/// One event.
#[derive(Clone, Debug)]
pub struct RunEvent {
    /// From 1 on, without a gap.
    pub seq: i64,
    pub at: Timestamp,
    pub kind: EventKind,
    pub node: Option<String>,
    pub data: Value,
}

impl EventKind {
    const ALL: [Self; 9] = [
        Self::RunStarted,
        Self::NodeCreated,
        Self::AgentStarted,
        Self::AgentCompleted,
        Self::AgentFailed,
        Self::ToolCall,
        Self::SystemIntervention,
        Self::IntermediateLog,
        Self::RunEnded,
    ];

    pub fn text(self) -> &'static str {
        match self {
            Self::RunStarted => "RunStarted",
            Self::NodeCreated => "NodeCreated",
            Self::AgentStarted => "AgentStarted",
            Self::AgentCompleted => "AgentCompleted",
            Self::AgentFailed => "AgentFailed",
            Self::ToolCall => "ToolCall",
            Self::SystemIntervention => "SystemIntervention",
            Self::IntermediateLog => "IntermediateLog",
            Self::RunEnded => "RunEnded",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.text() == text)
    }

    /// The name of the message that a WebSocket gets.
    pub fn message_type(self) -> &'static str {
        match self {
            Self::AgentStarted => "agent_started",
            Self::AgentCompleted => "agent_completed",
            Self::AgentFailed => "agent_failed",
            Self::SystemIntervention => "intervention_event",
            _ => "log_event",
        }
    }
}

impl RunEvent {
    pub fn json(&self, run: &str) -> Value {
        json!({
            "id": self.seq,
            "run_id": run,
            "event_type": self.kind.text(),
            "agent_id": self.node,
            "payload": self.data,
            "timestamp": self.at,
        })
    }
}
