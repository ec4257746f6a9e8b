//! Accepts connections, and serves each in its own task.

mod clustered;
mod connection;
mod dispatch;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzz;
mod handshake;
mod limits;
mod socket;
mod timeouts;
mod tunnel;
mod unread;

use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::Semaphore;

pub(crate) use clustered::Clustered;
pub use connection::Connections;
pub(crate) use connection::ListenerSettings;
pub use limits::ConnectionLimits;

/// Accepts connections forever, with at most `most` open at the same time.
pub async fn accept_all(listeners: &[TcpListener], connections: &Connections, most: usize) {
    let places = Arc::new(Semaphore::new(most));
    futures::future::join_all(listeners.iter().map(|listener| accept(listener, connections, &places))).await;
}

async fn accept(listener: &TcpListener, connections: &Connections, places: &Arc<Semaphore>) {
    loop {
        let Ok(place) = Arc::clone(places).acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, peer)) => connections.start(stream, peer.ip(), place),
            Err(error) => {
                // Usually out of file descriptors. Wait until other connections have ended.
                tracing::warn!(error = isopod_wire::error_chain(&error), "could not accept a connection");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
}
