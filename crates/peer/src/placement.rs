//! Where a new sandbox goes if this server can't have it.

use async_trait::async_trait;
use isopod_store::{Store, StoreError};

use crate::server_id::ServerId;

/// Chooses servers for what this server has refused.
#[async_trait]
pub trait Placement: std::fmt::Debug + Send + Sync {
    /// The other servers to try, the best first. `reachable` are those whose lease holds.
    async fn order(&self, reachable: Vec<ServerId>) -> Result<Vec<ServerId>, StoreError>;
}

/// The server with the fewest live sandboxes first.
#[derive(Debug)]
pub struct ByLoad {
    store: Store,
}

impl ByLoad {
    pub fn new(store: Store) -> Self {
        Self { store }
    }
}

#[async_trait]
impl Placement for ByLoad {
    async fn order(&self, mut reachable: Vec<ServerId>) -> Result<Vec<ServerId>, StoreError> {
        let servers = self.store.list_servers().await?;
        let load = |server: &ServerId| {
            let row = servers.iter().find(|row| row.id == server.as_str());
            row.map_or(u32::MAX, |row| row.sandboxes.running.saturating_add(row.sandboxes.paused))
        };
        reachable.sort_by_cached_key(|server| (load(server), server.clone()));
        Ok(reachable)
    }
}
