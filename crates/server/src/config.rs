//! What a whole server can be told.

use isopod_agents::AgentsConfig;
use isopod_control::ServeConfig;
use isopod_service::ServiceConfig;
use isopod_store::Store;

/// How to serve. Everything has a default but the store; nothing here reads the environment.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// Sandboxes, E2B's API and the edge.
    pub control: ServeConfig,
    /// Runs, sessions and the toolkit.
    pub agents: AgentsConfig,
    /// The sandbox service.
    pub service: ServiceConfig,
}

impl ServerConfig {
    /// The defaults, recording into `store`.
    pub fn new(store: Store) -> Self {
        Self { control: ServeConfig::new(store), agents: AgentsConfig::default(), service: ServiceConfig::default() }
    }
}
