//! The server itself: one listener, one task per connection, and the background tasks that end with it.

mod connection;
mod dispatch;
mod handshake;
mod patience;
mod unread;

use std::sync::Arc;
use std::time::Duration;

use isopod_wire::node::NodeApi;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::app::App;
use crate::config::ServeConfig;
use crate::files::run_retention;
use crate::lifecycle::{Fleet, Journal, reconcile, run_output, run_recheck, run_sampler};
use crate::runs::open_runs;
use crate::service::{Service, run_keeper};
use crate::sessions::{Sessions, run_session_sweep};
use crate::store::StoreError;
use crate::templates::{Catalogue, run_template_upkeep};
use crate::webhooks::{Poster, run_deliveries};
use connection::Connections;

/// Why the server could not start.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The store and the node could not be made to agree.
    #[error("could not take over the sandboxes that exist")]
    Reconcile(#[source] StoreError),
    /// Sessions cannot be had.
    #[error("could not open the sessions")]
    Sessions(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The runs that a former server left could not be taken over.
    #[error("could not take over the runs that exist")]
    Runs(#[source] StoreError),
    /// The settings contradict what any host can do.
    #[error("the limits for sandboxes are not acceptable")]
    Limits(#[from] isopod_wire::LimitsError),
}

/// Serves until `shutdown` is ready, then lets requests under way finish. Sandboxes go on running.
pub async fn serve(
    config: ServeConfig,
    listener: TcpListener,
    node: Arc<dyn NodeApi>,
    shutdown: impl Future,
) -> Result<(), ServeError> {
    config.sandbox_limits.check()?;
    let stop = CancellationToken::new();
    // Also when this future is dropped: nothing of the server outlives it.
    let _stopped_at_the_end = stop.clone().drop_guard();
    let (journal, journal_writer) = Journal::new(config.store.clone());
    let journal_writer = tokio::spawn(journal_writer);
    let fleet = Arc::new(Fleet::new(&config, node, journal, stop.clone()));
    let found = reconcile(&fleet).await.map_err(ServeError::Reconcile)?;
    tracing::info!(adopted = found.adopted, ended = found.ended, removed = found.removed, "took over");

    let catalogue = Arc::new(Catalogue::new(&config, Arc::clone(&fleet.node), stop.clone()));
    catalogue.recover().await.map_err(ServeError::Reconcile)?;
    let sessions = Sessions::open(Arc::clone(&fleet), Arc::clone(&catalogue), config.sessions.clone());
    let sessions = sessions.await.map_err(|error| ServeError::Sessions(error.into()))?;
    // Streams that never end by themselves end before the others are waited for.
    let closing = stop.child_token();
    let (service, records) = Service::open(&config, Arc::clone(&fleet), Arc::clone(&catalogue), closing.clone())
        .await
        .map_err(ServeError::Reconcile)?;
    let records = tokio::spawn(records);

    let mut background = start_background(&config, &fleet, &stop);
    background.spawn(run_template_upkeep(Arc::clone(&catalogue), stop.clone()));
    background.spawn(run_session_sweep(Arc::clone(&sessions), config.recheck_every));
    background.spawn(run_keeper(Arc::clone(&service), stop.clone()));
    let runs = open_runs(&config, &sessions, &stop, &mut background).await.map_err(ServeError::Runs)?;
    let app = Arc::new(App::new(&config, Arc::clone(&fleet), catalogue, sessions, Arc::clone(&runs), service));
    if let Some(files) = &app.files {
        background.spawn(run_retention(Arc::clone(files), Arc::clone(&fleet), config.recheck_every, stop.clone()));
    }
    drop(fleet);
    let connections = Connections::new(Arc::clone(&app), config.connections, config.tls.clone());
    tokio::select! {
        () = accept_all(&listener, &connections, config.connections.total) => {}
        _ = shutdown => {}
    }
    drop(listener);
    closing.cancel();
    connections.drain(config.drain).await;
    stop.cancel();
    background.join_all().await;
    runs.drain().await;
    drop((app, connections, runs));
    // Owners drop their ends of the journal as they stop; what is queued is written before we leave.
    let _ = tokio::time::timeout(Duration::from_secs(5), journal_writer).await;
    let _ = tokio::time::timeout(Duration::from_secs(5), records).await;
    Ok(())
}

pub(crate) fn start_background(config: &ServeConfig, fleet: &Arc<Fleet>, stop: &CancellationToken) -> JoinSet<()> {
    let mut background = JoinSet::new();
    background.spawn(run_sampler(Arc::clone(fleet), config.sample_every, config.retention));
    background.spawn(run_output(Arc::clone(fleet), config.sample_every));
    background.spawn(run_recheck(Arc::clone(fleet), config.recheck_every));
    let follower = Arc::clone(fleet);
    background.spawn(async move { follower.follow_node().await });
    background.spawn(run_deliveries(config.store.clone(), Poster::new(config), stop.clone()));
    background
}

/// Accepts connections for ever, as many at the same time as is allowed.
async fn accept_all(listener: &TcpListener, connections: &Connections, most: usize) {
    let places = Arc::new(Semaphore::new(most));
    loop {
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, peer)) => connections.start(stream, peer.ip(), place),
            Err(error) => {
                // Out of file descriptors, usually: others must end before it makes sense to try again.
                tracing::warn!(error = crate::chain(&error), "could not accept a connection");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
}
