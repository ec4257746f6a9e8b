//! What every request can reach.

use std::sync::Arc;

use crate::backend::{Backend, LocalBackend, Resilient};
use crate::config::ServeConfig;
use crate::edge::Domain;
use crate::files::FileStore;
use crate::lifecycle::Fleet;
use crate::runs::Runs;
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
    /// Where the sandboxes of the service come from.
    pub(crate) backend: Resilient,
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
}

impl App {
    pub(crate) fn new(
        config: &ServeConfig,
        fleet: Arc<Fleet>,
        catalogue: Arc<Catalogue>,
        sessions: Arc<Sessions>,
        runs: Arc<Runs>,
    ) -> Self {
        Self {
            backend: backend(config, &fleet, &catalogue),
            fleet,
            catalogue,
            sessions,
            runs,
            is_tls: config.tls.is_some(),
            domain_text: config.domain.clone(),
            domain: Domain::new(&config.domain),
            allowed_origins: config.allowed_origins.clone(),
            allowed_hosts: config.allowed_hosts.clone(),
            allow_internal_webhooks: config.allow_internal_webhooks,
            max_body: config.connections.max_body,
            workspace: config.workspace.clone(),
            files: config.workspace.clone().map(|workspace| Arc::new(FileStore::new(workspace, config.files))),
        }
    }
}

fn backend(config: &ServeConfig, fleet: &Arc<Fleet>, catalogue: &Arc<Catalogue>) -> Resilient {
    let inner: Arc<dyn Backend> = match &config.remote_backend {
        Some(remote) => Arc::new(remote.clone()),
        None => Arc::new(LocalBackend::new(Arc::clone(fleet), Arc::clone(catalogue))),
    };
    Resilient::new(inner, config.resilience)
}
