//! Runs a server: opens its parts, answers requests until the shutdown, and then stops everything in order.

use std::sync::Arc;
use std::time::Duration;

use isopod_agents::{Agents, OpenError};
use isopod_api::LocatedRoutes;
use isopod_api::audit::Recorder;
use isopod_control::listener::accept_all;
use isopod_control::run_retention;
use isopod_control::templates::run_template_maintenance;
use isopod_control::{Core, ServeConfig, StartError, open_app, open_connections};
use isopod_mcp::McpHttp;
use isopod_peer::{ByLoad, Cluster};
use isopod_service::{Service, run_reconciler};
use isopod_store::StoreError;
use isopod_wire::node::NodeApi;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::config::ServerConfig;
use crate::mcp::{Inside, McpEndpoint};
use crate::parts::Parts;
use crate::routes::{declared_routes, router, with_dashboard};

/// How long a stopping server waits for the removal of sandboxes of ended runs.
const CLEANUP_TIMEOUT: Duration = Duration::from_secs(5);
/// How long it waits for all that happens after the last request. If the database is away, nothing of this can end by
/// itself. The next server continues from the records, as after a crash.
const FINISH_TIMEOUT: Duration = Duration::from_secs(10);

/// Why the server could not start.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The sandboxes of an earlier server could not be adopted.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The sessions and runs of an earlier server could not be adopted.
    #[error(transparent)]
    Agents(#[from] OpenError),
    /// The server could not take its place in the cluster.
    #[error("could not take this server's place in the cluster")]
    Cluster(#[from] isopod_peer::OpenError),
    /// The builds or the audit log of an earlier server could not be read.
    #[error("could not read the state of an earlier server")]
    Store(#[from] StoreError),
}

/// Serves until `shutdown` is ready, then waits for requests in progress. Sandboxes keep running.
///
/// # Errors
/// If the state of an earlier server cannot be adopted.
pub async fn serve(
    config: ServerConfig,
    listeners: Vec<TcpListener>,
    node: Arc<dyn NodeApi>,
    shutdown: impl Future,
) -> Result<(), ServeError> {
    let ServerConfig {
        control: config,
        agents: agents_config,
        service: service_config,
        state_dir,
        dashboard,
        local_names,
        mcp,
    } = config;
    let stop = CancellationToken::new();
    // Also if this future is dropped, so that no task outlives the server.
    let _stopped_at_the_end = stop.clone().drop_guard();
    let Core { fleet, catalogue, mut background, journal } = Core::open(&config, node, &stop).await?;
    catalogue.recover().await?;
    let app = Arc::new(open_app(&config, Arc::clone(&fleet), Arc::clone(&catalogue)));
    let (recorder, records) = Recorder::open(&config.store).await?;
    let records = tokio::spawn(records);
    // Cancelled before the drain, because some streams never end by themselves.
    let closing = stop.child_token();
    let service = Service::open(&service_config, &app, recorder.clone(), closing.clone()).await?;
    background.spawn(run_template_maintenance(catalogue, stop.clone()));
    background.spawn(run_reconciler(Arc::clone(&service), stop.clone()));
    let agents = Agents::open(&agents_config, &config, &app, &stop, &mut background).await?;
    if let Some(files) = &app.files {
        background.spawn(run_retention(Arc::clone(files), Arc::clone(&fleet), config.recheck_every, stop.clone()));
    }
    let streams_end = fleet.streams_end.clone();
    drop(fleet);
    let cluster = open_cluster(&config, &stop).await?;
    let inside = Inside::default();
    let mcp = match mcp {
        Some(mcp) => {
            let (http, authenticator) = (McpHttp::open(mcp, closing.clone()), Arc::clone(&app.authenticator));
            background.spawn(Arc::clone(&http).run());
            Some(Arc::new(McpEndpoint { http, inside: inside.clone(), authenticator }))
        }
        None => None,
    };
    let parts = Parts { app: Arc::clone(&app), agents: Arc::clone(&agents), service, local_names, mcp, state_dir };
    let api = with_dashboard(router(parts, recorder), &dashboard, (&config, &app), closing.clone());
    let (cluster, members) = cluster.unzip();
    let located = cluster.clone().map(|cluster| (cluster, LocatedRoutes::of(declared_routes())));
    let connections = Arc::new(open_connections(&config, &app, api, located));
    inside.open(&connections);
    if let (Some(cluster), Some(members)) = (cluster, members) {
        background.spawn(cluster.run(members, connections.for_members()));
    }
    // The app holds the fleet, and with it the journal. It must not outlive the connections.
    drop(app);
    tokio::select! {
        () = accept_all(&listeners, &connections, config.connections.total) => {}
        _ = shutdown => {}
    }
    drop(listeners);
    closing.cancel();
    connections.drain(config.drain, &streams_end).await;
    let finish = async {
        agents.finish_cleanups(CLEANUP_TIMEOUT).await;
        stop.cancel();
        background.join_all().await;
        agents.drain().await;
        drop((connections, agents));
        // Controllers drop their handles of the journal and of the audit log when they stop. Queued records are written
        // before we return.
        journal.finish().await;
        let _ = records.await;
    };
    if tokio::time::timeout(FINISH_TIMEOUT, finish).await.is_err() {
        tracing::warn!("stopped before everything was written; the next server continues from the records");
    }
    Ok(())
}

/// Opens the cluster and the listener for its other servers, if the server is a member of one.
async fn open_cluster(
    config: &ServeConfig,
    stop: &CancellationToken,
) -> Result<Option<(Arc<Cluster>, TcpListener)>, ServeError> {
    let Some(settings) = config.cluster.clone() else { return Ok(None) };
    let store = config.store.clone();
    let placement = Box::new(ByLoad::new(store.clone()));
    Ok(Some(Cluster::open(settings, store, placement, stop.clone()).await?))
}
