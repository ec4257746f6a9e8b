//! The parts of a server.

use std::path::PathBuf;
use std::sync::Arc;

use isopod_agents::Agents;
use isopod_control::App;
use isopod_service::Service;

use crate::config::LocalNames;
use crate::mcp::McpEndpoint;

/// The state that handlers share.
pub(crate) struct Parts {
    pub(crate) app: Arc<App>,
    pub(crate) agents: Arc<Agents>,
    pub(crate) service: Arc<Service>,
    pub(crate) local_names: LocalNames,
    /// Missing if it is switched off.
    pub(crate) mcp: Option<Arc<McpEndpoint>>,
    pub(crate) state_dir: Option<PathBuf>,
}
