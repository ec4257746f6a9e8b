//! Records the turns of runs before they take effect.

use async_trait::async_trait;
use isopod_store::{RunTurn, Store, StoreError};

/// Records turns. Recording the same turn twice is harmless.
#[async_trait]
pub(crate) trait Ledger: Send + Sync + 'static {
    async fn commit(&self, turn: &RunTurn) -> Result<(), StoreError>;
}

#[async_trait]
impl Ledger for Store {
    async fn commit(&self, turn: &RunTurn) -> Result<(), StoreError> {
        self.commit_turn(turn).await
    }
}
