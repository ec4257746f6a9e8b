//! The settings of runs, sessions and the toolkit.

use std::time::Duration;

use crate::sessions::SessionSettings;

/// The settings of the features for agents. Everything has a default.
#[derive(Clone, Debug, Default)]
pub struct AgentsConfig {
    /// Settings for runs of workflows.
    pub runs: RunsConfig,
    /// Settings for sessions of agents.
    pub sessions: SessionSettings,
}

/// Settings for runs of workflows.
#[derive(Clone, Debug)]
pub struct RunsConfig {
    /// The agent service. It serves agents that have no URL of their own, and is told when a run has ended.
    pub agent_url: Option<String>,
    /// Whether agents may be on loopback and private addresses. The agent service always may.
    pub allow_internal_agents: bool,
    /// The wait before the second attempt at a node. It doubles before each further one.
    pub retry_wait: Duration,
    /// How long after the first failed attempt an agent service may still confirm that it has cleaned up after a run.
    pub cleanup_deadline: Duration,
}

impl Default for RunsConfig {
    fn default() -> Self {
        Self {
            agent_url: None,
            allow_internal_agents: false,
            retry_wait: Duration::from_millis(500),
            cleanup_deadline: Duration::from_secs(3600),
        }
    }
}
