//! A local backend without a server around it: for programs that want the sandboxes and not the API.

use std::sync::Arc;

use isopod_control::{Core, JournalWriter, ServeConfig, StartError};
use isopod_wire::node::NodeApi;
use tokio::task::JoinSet;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::LocalBackend;

/// What a server would keep. Everything ends when it is dropped.
#[derive(Debug)]
pub(super) struct Alone {
    stop: DropGuard,
    background: JoinSet<()>,
    journal: JournalWriter,
}

impl LocalBackend {
    /// Takes over the sandboxes of a node and a store that no server uses.
    ///
    /// # Errors
    /// When the settings cannot be, or the store fails.
    pub async fn open(config: &ServeConfig, node: Arc<dyn NodeApi>) -> Result<Self, StartError> {
        let token = CancellationToken::new();
        let stop = token.clone().drop_guard();
        let Core { fleet, catalogue, background, journal } = Core::open(config, node, &token).await?;
        Ok(Self { fleet, catalogue, alone: Some(Alone { stop, background, journal }) })
    }

    /// Ends what [`Self::open`] started and waits for it. Sandboxes go on running.
    pub async fn close(self) {
        let Some(Alone { stop, background, journal }) = self.alone else { return };
        drop(stop);
        background.join_all().await;
        drop(self.fleet);
        journal.finish().await;
    }
}
