//! A local backend without a server around it: for programs that want the sandboxes and not the API.

use std::sync::Arc;
use std::time::Duration;

use isopod_wire::node::NodeApi;
use tokio::task::{JoinHandle, JoinSet};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::LocalBackend;
use crate::config::ServeConfig;
use crate::lifecycle::{Fleet, Journal, reconcile};
use crate::serve::{ServeError, start_background};
use crate::templates::Catalogue;

/// What a server would keep. Everything ends when it is dropped.
#[derive(Debug)]
pub(super) struct Alone {
    stop: DropGuard,
    background: JoinSet<()>,
    journal: JoinHandle<()>,
}

const PATIENCE: Duration = Duration::from_secs(5);

impl LocalBackend {
    /// Takes over the sandboxes of a node and a store that no server uses.
    ///
    /// # Errors
    /// Like [`serve`](crate::serve()).
    pub async fn open(config: &ServeConfig, node: Arc<dyn NodeApi>) -> Result<Self, ServeError> {
        config.sandbox_limits.check()?;
        let token = CancellationToken::new();
        let stop = token.clone().drop_guard();
        let (journal, writer) = Journal::new(config.store.clone());
        let journal_writer = tokio::spawn(writer);
        let fleet = Arc::new(Fleet::new(config, node, journal, token.clone()));
        reconcile(&fleet).await.map_err(ServeError::Reconcile)?;
        let catalogue = Arc::new(Catalogue::new(config, Arc::clone(&fleet.node), token.clone()));
        let background = start_background(config, &fleet, &token);
        Ok(Self { fleet, catalogue, alone: Some(Alone { stop, background, journal: journal_writer }) })
    }

    /// Ends what [`Self::open`] started and waits for it. Sandboxes go on running.
    pub async fn close(self) {
        let Some(Alone { stop, background, journal }) = self.alone else { return };
        drop(stop);
        background.join_all().await;
        drop(self.fleet);
        // Owners drop their ends of the journal as they stop; what is queued is written before we leave.
        let _ = tokio::time::timeout(PATIENCE, journal).await;
    }
}
