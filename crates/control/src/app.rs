//! What every request can reach.

use std::sync::Arc;

use crate::config::ServeConfig;
use crate::edge::Domain;
use crate::lifecycle::Fleet;

/// Shared by all requests.
#[derive(Debug)]
pub(crate) struct App {
    pub(crate) fleet: Arc<Fleet>,
    /// As told to clients.
    pub(crate) domain_text: String,
    /// As compared with the names that clients use.
    pub(crate) domain: Domain,
    pub(crate) allowed_origins: Vec<String>,
    pub(crate) allowed_hosts: Vec<String>,
    pub(crate) allow_internal_webhooks: bool,
    pub(crate) max_body: usize,
}

impl App {
    pub(crate) fn new(config: &ServeConfig, fleet: Arc<Fleet>) -> Self {
        Self {
            fleet,
            domain_text: config.domain.clone(),
            domain: Domain::new(&config.domain),
            allowed_origins: config.allowed_origins.clone(),
            allowed_hosts: config.allowed_hosts.clone(),
            allow_internal_webhooks: config.allow_internal_webhooks,
            max_body: config.connections.max_body,
        }
    }
}
