//! What every request of E2B's API can reach.

use std::sync::Arc;

use isopod_api::Authenticator;
use isopod_outbound::Policy;
use isopod_wire::Cidr;

use crate::edge::Domains;
use crate::files::FileStore;
use crate::lifecycle::Fleet;
use crate::shares::Shares;
use crate::templates::Catalogue;
use crate::workspace::Workspace;

/// A name whose servers do not answer is looked for half a minute, and holds a thread meanwhile.
const LOOKUPS_PER_TEAM: usize = 4;

/// Shared by all requests.
#[derive(Debug)]
pub struct App {
    pub fleet: Arc<Fleet>,
    pub catalogue: Arc<Catalogue>,
    pub workspace: Option<Workspace>,
    pub files: Option<Arc<FileStore>>,
    /// Who callers are.
    pub authenticator: Arc<Authenticator>,
    pub(crate) settings: ApiSettings,
    /// Names of hosts that teams have looked up for them.
    pub(super) lookups: Arc<Shares>,
}

/// What handlers go by.
#[derive(Clone, Debug)]
pub(crate) struct ApiSettings {
    /// `host[:port]` under which sandboxes have their names, as told to clients.
    pub(crate) domain: String,
    /// The same, and the others that clients may know us by.
    pub(crate) domains: Domains,
    /// Where webhooks may go.
    pub(crate) webhook_policy: Policy,
    /// What `allowOut` may name of private networks.
    pub(crate) sandbox_networks: Vec<Cidr>,
    /// Whether teams get what the same steps of other teams' builds made.
    pub(crate) share_build_cache: bool,
}

impl App {
    pub(crate) fn new(
        settings: ApiSettings,
        fleet: Arc<Fleet>,
        catalogue: Arc<Catalogue>,
        workspace: Option<(Workspace, Arc<FileStore>)>,
        authenticator: Arc<Authenticator>,
    ) -> Self {
        let (workspace, files) = workspace.unzip();
        Self { fleet, catalogue, workspace, files, authenticator, settings, lookups: Shares::new(LOOKUPS_PER_TEAM) }
    }

    /// `host[:port]` under which sandboxes have their names, as told to clients.
    pub fn domain(&self) -> &str {
        &self.settings.domain
    }
}
