//! The state of the service.

use std::sync::Arc;

use isopod_api::Guesses;
use isopod_api::audit::Recorder;
use isopod_control::App;
use isopod_control::edge::PreviewNames;
use isopod_control::lifecycle::Fleet;
use isopod_control::templates::Catalogue;
use isopod_store::clock::Timestamp;
use isopod_store::{Store, StoreError};
use tokio_util::sync::CancellationToken;

use crate::backend::{Backend, LocalBackend, Resilient};
use crate::config::ServiceConfig;
use crate::hub::Hub;
use crate::metrics::ServiceMetrics;
use crate::resuming::Resuming;

/// The label of every sandbox of the service: the server that created it.
pub(crate) const SERVER_LABEL: &str = "isopod.service";

/// The state that all operations of the service share.
#[derive(Debug)]
pub struct Service {
    pub(crate) backend: Arc<dyn Backend>,
    /// The same backend, for its metrics.
    pub(crate) resilient: Arc<Resilient>,
    pub(crate) store: Store,
    pub(crate) recorder: Recorder,
    pub(crate) hub: Arc<Hub>,
    pub(crate) metrics: ServiceMetrics,
    pub(crate) resuming: Resuming,
    pub(crate) config: ServiceConfig,
    /// The identity of this server in rows that several servers may share.
    pub(crate) server: String,
    /// For what only sandboxes of this node can provide.
    pub(crate) fleet: Arc<Fleet>,
    /// The host names of sandboxes' ports.
    pub(crate) previews: PreviewNames,
    /// `host[:port]` of this server, for links to it.
    pub(crate) domain: String,
    /// Who opened short URLs that don't exist.
    pub(crate) guesses: Guesses,
    /// Cancelled when the server stops, for streams that would otherwise never end.
    pub(crate) stop: CancellationToken,
    /// Creates from before this time belong to a process that is gone.
    pub(crate) started: Timestamp,
}

impl Service {
    /// Opens the service for this server's rows.
    ///
    /// # Errors
    /// If the store fails.
    pub async fn open(
        config: &ServiceConfig,
        app: &App,
        recorder: Recorder,
        stop: CancellationToken,
    ) -> Result<Arc<Self>, StoreError> {
        let (fleet, catalogue) = (Arc::clone(&app.fleet), Arc::clone(&app.catalogue));
        let resilient = Arc::new(Resilient::new(backend_of(config, &fleet, catalogue), config.resilience));
        let backend = Arc::clone(&resilient) as Arc<dyn Backend>;
        let started = Timestamp::now();
        let store = fleet.store.clone();
        let server = store.server_identity().await?;
        if let Err(error) = store.ensure_plain_views().await {
            // The service doesn't need them, and the database may belong to others too.
            tracing::warn!(
                error = isopod_wire::error_chain(&error),
                "the database has no views with plain names; docs/database.md says how to allow them"
            );
        }
        Ok(Arc::new(Self {
            backend,
            resilient,
            store,
            recorder,
            hub: Hub::new(),
            metrics: ServiceMetrics::default(),
            resuming: Resuming::default(),
            config: config.clone(),
            server,
            fleet,
            previews: app.preview_names(),
            domain: app.domain().to_owned(),
            guesses: Guesses::new(config.guesses_per_minute),
            stop,
            started,
        }))
    }
}

fn backend_of(config: &ServiceConfig, fleet: &Arc<Fleet>, catalogue: Arc<Catalogue>) -> Arc<dyn Backend> {
    match (&config.backend, &config.remote) {
        (Some(own), _) => Arc::clone(own),
        (None, Some(remote)) => Arc::new(remote.clone()),
        (None, None) => Arc::new(LocalBackend::new(Arc::clone(fleet), catalogue)),
    }
}
