//! The sandbox service: what a team puts between its agents and sandboxes. It knows whose each sandbox is, keeps what was
//! run in it, counts against quotas, and sees to it that nothing is left when a task ends.
//!
//! ```text
//! creating ──► running ◄──► paused
//!     │           │            │
//!     ▼           ▼            ▼
//!   error ◄───────┴────► stopped      (each with a reason, and with the time of its end)
//! ```
//! Rows are intents first: one is written before the backend is asked, and [`keeper`] settles those whose maker died. The
//! sandboxes themselves live with a [`backend`]; on this server's own node the fleet owns them as it owns all others.

mod access;
pub mod backend;
mod config;
mod create;
mod destroy;
mod error;
mod execute;
mod files;
mod git;
mod hub;
mod keeper;
mod metrics;
mod pause;
mod policy;
mod recorder;
mod settle;
mod shell;
mod tasks;

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use crate::clock::Timestamp;
use crate::config::ServeConfig;
use crate::lifecycle::Fleet;
use crate::store::{Store, StoreError};
use crate::templates::Catalogue;

pub(crate) use access::{Access, Aim};
use backend::{Backend, LocalBackend, Resilient};
pub use config::ServiceConfig;
pub(crate) use create::NewServiceSandbox;
pub(crate) use error::ServiceError;
pub(crate) use execute::{Execution, StreamEvent};
pub(crate) use git::{GitReply, GitWish};
pub(crate) use hub::{Following, Hub, HubEvent};
pub(crate) use keeper::run_keeper;
pub(crate) use metrics::ServiceMetrics;
pub use policy::CommandPolicy;
pub(crate) use recorder::{AuditDown, Recorder};
pub(crate) use tasks::{NewTask, TaskEnd};

/// The label of every sandbox that the service makes: which server made it.
const SERVER_LABEL: &str = "isopod.service";

/// What the verbs share.
#[derive(Debug)]
pub(crate) struct Service {
    pub(crate) backend: Arc<dyn Backend>,
    /// The same, for what it counts.
    pub(crate) resilient: Arc<Resilient>,
    pub(crate) store: Store,
    pub(crate) recorder: Recorder,
    pub(crate) hub: Arc<Hub>,
    pub(crate) metrics: ServiceMetrics,
    pub(crate) config: ServiceConfig,
    /// Who this server is in rows that several may share.
    pub(crate) server: String,
    /// For what only sandboxes of this node can tell.
    fleet: Arc<Fleet>,
    /// Cancelled when the server stops, for streams that would otherwise go on for ever.
    pub(crate) stop: CancellationToken,
    /// Creates that began before were begun by a process that is gone.
    started: Timestamp,
}

impl Service {
    /// The service and the writer of its records, which must be run.
    pub(crate) async fn open(
        config: &ServeConfig,
        fleet: Arc<Fleet>,
        catalogue: Arc<Catalogue>,
        stop: CancellationToken,
    ) -> Result<(Arc<Self>, impl Future<Output = ()> + use<>), StoreError> {
        let resilient = Arc::new(Resilient::new(backend_of(config, &fleet, catalogue), config.resilience));
        let backend = Arc::clone(&resilient) as Arc<dyn Backend>;
        let started = Timestamp::now();
        let store = fleet.store.clone();
        let server = store.server_identity().await?;
        let end = store.chain_end(&server).await?;
        let (recorder, writer) = Recorder::new(store.clone(), end);
        let hub = Hub::new();
        let (metrics, config) = (ServiceMetrics::default(), config.service.clone());
        Ok((
            Arc::new(Self { backend, resilient, store, recorder, hub, metrics, config, server, fleet, stop, started }),
            writer,
        ))
    }
}

fn backend_of(config: &ServeConfig, fleet: &Arc<Fleet>, catalogue: Arc<Catalogue>) -> Arc<dyn Backend> {
    match (&config.service.backend, &config.remote_backend) {
        (Some(own), _) => Arc::clone(own),
        (None, Some(remote)) => Arc::new(remote.clone()),
        (None, None) => Arc::new(LocalBackend::new(Arc::clone(fleet), catalogue)),
    }
}
