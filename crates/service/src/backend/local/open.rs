//! A local backend without a server, for programs that use sandboxes without the API.

use std::sync::Arc;

use isopod_control::{Core, JournalWriter, ServeConfig, StartError};
use isopod_wire::node::NodeApi;
use tokio::task::JoinSet;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::LocalBackend;

/// What a server would own. Everything ends when it is dropped.
#[derive(Debug)]
pub(super) struct Standalone {
    stop: DropGuard,
    background: JoinSet<()>,
    journal: JournalWriter,
}

impl LocalBackend {
    /// Takes over the sandboxes of a node and a store that no server uses.
    ///
    /// # Errors If the settings are invalid or the store fails.
    pub async fn open(config: &ServeConfig, node: Arc<dyn NodeApi>) -> Result<Self, StartError> {
        let token = CancellationToken::new();
        let stop = token.clone().drop_guard();
        let Core { fleet, catalogue, background, journal } = Core::open(config, node, &token).await?;
        Ok(Self { fleet, catalogue, standalone: Some(Standalone { stop, background, journal }) })
    }

    /// Ends what [`Self::open`] started and waits for it. Sandboxes keep running.
    pub async fn close(self) {
        let Some(Standalone { stop, background, journal }) = self.standalone else { return };
        drop(stop);
        background.join_all().await;
        drop(self.fleet);
        journal.finish().await;
    }
}
