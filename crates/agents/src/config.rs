//! What runs, sessions and the toolkit can be told.

use std::time::Duration;

use crate::sessions::SessionSettings;

/// How agents are served. Everything has a default.
#[derive(Clone, Debug, Default)]
pub struct AgentsConfig {
    /// How workflows are run.
    pub runs: RunsConfig,
    /// How agents' sessions work.
    pub sessions: SessionSettings,
}

/// How workflows are run.
#[derive(Clone, Debug)]
pub struct RunsConfig {
    /// The agent service: agents without a URL of their own are invoked there, and it is told when a run has ended.
    pub agent_url: Option<String>,
    /// Agents may be on loopback and private addresses. The agent service may always.
    pub allow_internal_agents: bool,
    /// Before the second attempt at a node; twice as long before each further one.
    pub retry_wait: Duration,
}

impl Default for RunsConfig {
    fn default() -> Self {
        Self { agent_url: None, allow_internal_agents: false, retry_wait: Duration::from_millis(500) }
    }
}
