//! The configuration of a whole server.

use std::net::Ipv4Addr;
use std::path::PathBuf;

use isopod_agents::AgentsConfig;
use isopod_control::ServeConfig;
use isopod_dashboard::DashboardConfig;
use isopod_mcp::HttpConfig;
use isopod_service::ServiceConfig;
use isopod_store::Store;

/// The configuration of a server. Everything except the store has a default. Nothing here reads the environment.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// Sandboxes, E2B's API and the edge.
    pub control: ServeConfig,
    /// Runs, sessions and the toolkit.
    pub agents: AgentsConfig,
    /// The sandbox service.
    pub service: ServiceConfig,
    /// Where the server keeps its files, to tell how full that disk is.
    pub state_dir: Option<PathBuf>,
    /// Pages for browsers.
    pub dashboard: DashboardConfig,
    /// How programs on this machine find the server under other domains.
    pub local_names: LocalNames,
    /// Tools for coding agents at `/mcp`. `None` switches them off.
    pub mcp: Option<HttpConfig>,
}

/// What `isopod env` needs in order to point a program to this server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LocalNames {
    /// The names are served.
    Served(ServedNames),
    /// The names are not served. Contains the reason.
    Missing(String),
}

/// Other domains, and the address that serves them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServedNames {
    /// The domains. All names below them lead to the server too.
    pub domains: Vec<String>,
    /// An address of this machine with a resolver for these domains on port 53 and the server on port 443.
    pub address: Ipv4Addr,
    /// The certificate of the authority for these domains, in PEM. The authority cannot certify anything else.
    pub authority: String,
}

impl ServerConfig {
    /// Creates the default configuration with this store.
    pub fn new(store: Store) -> Self {
        Self {
            control: ServeConfig::new(store),
            agents: AgentsConfig::default(),
            service: ServiceConfig::default(),
            state_dir: None,
            dashboard: DashboardConfig::default(),
            local_names: LocalNames::Missing("this server serves only its own domain".to_owned()),
            mcp: Some(HttpConfig::default()),
        }
    }
}
