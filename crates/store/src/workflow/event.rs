//! The events of a run, with the names that the agent kernel uses. Events are numbered within their run and stored
//! together with the state that they describe, so a watcher that connects later misses nothing.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use utoipa::ToSchema;

use crate::clock::Timestamp;

/// Kinds of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = RunEventKind)]
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

#[derive(Clone, Debug)]
pub struct RunEvent {
    /// Counted from 1, without gaps.
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

    /// The type of the WebSocket message.
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
