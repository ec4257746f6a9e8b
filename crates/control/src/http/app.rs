//! The state that all handlers of E2B's API share.

use std::sync::Arc;

use isopod_api::{Authenticator, PerTeamLimit};
use isopod_outbound::Policy;
use isopod_wire::Cidr;

use crate::edge::{Domains, PreviewNames};
use crate::lifecycle::Fleet;
use crate::templates::Catalogue;
use isopod_files::FileStore;
use isopod_files::workspace::Workspace;

/// The maximum number of images that one team exports at the same time. Each is a file on the server's disk until the
/// client has read it.
const EXPORTS_PER_TEAM: usize = 2;

/// The maximum number of concurrent DNS lookups of one team. A lookup can take half a minute if the name's servers do
/// not answer, and blocks a thread.
const LOOKUPS_PER_TEAM: usize = 4;

#[derive(Debug)]
pub struct App {
    pub fleet: Arc<Fleet>,
    pub catalogue: Arc<Catalogue>,
    pub workspace: Option<Workspace>,
    pub files: Option<Arc<FileStore>>,
    /// Identifies callers.
    pub authenticator: Arc<Authenticator>,
    pub(crate) settings: ApiSettings,
    /// Limits the DNS lookups of each team.
    pub(super) lookups: Arc<PerTeamLimit>,
    /// Limits the images that each team exports.
    pub(super) exports: Arc<PerTeamLimit>,
}

/// The settings that handlers need.
#[derive(Clone, Debug)]
pub(crate) struct ApiSettings {
    /// `host[:port]` below which sandboxes have their names, as it is given to clients.
    pub(crate) domain: String,
    /// The same domain, and the others by which clients may know the server.
    pub(crate) domains: Domains,
    /// The addresses that webhooks may go to.
    pub(crate) webhook_policy: Policy,
    /// The private networks that `allowOut` may name.
    pub(crate) sandbox_networks: Vec<Cidr>,
    /// Whether teams share results of equal build steps.
    pub(crate) share_build_cache: bool,
    pub(crate) allow_host_base: bool,
    /// The name of this server for people.
    pub(crate) node_name: String,
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
        Self {
            fleet,
            catalogue,
            workspace,
            files,
            authenticator,
            settings,
            lookups: PerTeamLimit::new(LOOKUPS_PER_TEAM),
            exports: PerTeamLimit::new(EXPORTS_PER_TEAM),
        }
    }

    /// `host[:port]` below which sandboxes have their names, as it is given to clients.
    pub fn domain(&self) -> &str {
        &self.settings.domain
    }

    /// The host names of sandboxes' ports.
    pub fn preview_names(&self) -> PreviewNames {
        PreviewNames::new(self.settings.domains.clone())
    }
}
