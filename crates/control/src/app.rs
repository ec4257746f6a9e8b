//! What every request can reach.

use std::sync::Arc;

use crate::config::ServeConfig;
use crate::edge::Domain;
use crate::files::FileStore;
use crate::identity::TokenCheck;
use crate::lifecycle::Fleet;
use crate::runs::Runs;
use crate::service::Service;
use crate::sessions::Sessions;
use crate::templates::Catalogue;
use crate::workspace::Workspace;

/// Shared by all requests.
#[derive(Debug)]
pub(crate) struct App {
    pub(crate) fleet: Arc<Fleet>,
    pub(crate) catalogue: Arc<Catalogue>,
    /// Whether clients speak TLS with us.
    pub(crate) is_tls: bool,
    pub(crate) sessions: Arc<Sessions>,
    pub(crate) runs: Arc<Runs>,
    pub(crate) service: Arc<Service>,
    /// As told to clients.
    pub(crate) domain_text: String,
    /// As compared with the names that clients use.
    pub(crate) domain: Domain,
    pub(crate) allowed_origins: Vec<String>,
    pub(crate) allowed_hosts: Vec<String>,
    pub(crate) allow_internal_webhooks: bool,
    pub(crate) max_body: usize,
    pub(crate) workspace: Option<Workspace>,
    pub(crate) files: Option<Arc<FileStore>>,
    /// None where only keys count.
    pub(crate) tokens: Option<TokenCheck>,
}

impl App {
    pub(crate) fn new(
        config: &ServeConfig,
        fleet: Arc<Fleet>,
        catalogue: Arc<Catalogue>,
        sessions: Arc<Sessions>,
        runs: Arc<Runs>,
        service: Arc<Service>,
    ) -> Self {
        Self {
            fleet,
            catalogue,
            sessions,
            runs,
            service,
            is_tls: config.tls.is_some(),
            domain_text: config.domain.clone(),
            domain: Domain::new(&config.domain),
            allowed_origins: config.allowed_origins.clone(),
            allowed_hosts: config.allowed_hosts.clone(),
            allow_internal_webhooks: config.allow_internal_webhooks,
            max_body: config.connections.max_body,
            workspace: config.workspace.clone(),
            files: config.workspace.clone().map(|workspace| Arc::new(FileStore::new(workspace, config.files))),
            tokens: config
                .team_tokens
                .clone()
                .map(|tokens| TokenCheck::new(tokens, config.webhook_authorities.clone())),
        }
    }
}
