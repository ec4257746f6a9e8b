//! What a whole server can be told.

use std::net::Ipv4Addr;

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
    /// How programs of this machine find the server under other domains.
    pub local_names: LocalNames,
}

/// What `isopod env` needs to let a program find this server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LocalNames {
    /// They can.
    Served(ServedNames),
    /// They cannot, and why.
    Missing(String),
}

/// Other domains, and who answers for them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServedNames {
    /// The domains. Everything below them is the server, too.
    pub domains: Vec<String>,
    /// An address of this machine: a resolver on port 53 that knows them, and the server on port 443.
    pub address: Ipv4Addr,
    /// The certificate of the authority that certifies them, in PEM. It can certify nothing else.
    pub authority: String,
}

impl ServerConfig {
    /// The defaults, recording into `store`.
    pub fn new(store: Store) -> Self {
        Self {
            control: ServeConfig::new(store),
            agents: AgentsConfig::default(),
            service: ServiceConfig::default(),
            local_names: LocalNames::Missing("this server answers for no domain but its own".to_owned()),
        }
    }
}
