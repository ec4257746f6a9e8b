//! The parts of a server.

use std::sync::Arc;

use isopod_agents::Agents;
use isopod_control::App;
use isopod_service::Service;

/// What requests can reach.
pub(crate) struct Parts {
    pub(crate) app: Arc<App>,
    pub(crate) agents: Arc<Agents>,
    pub(crate) service: Arc<Service>,
}
