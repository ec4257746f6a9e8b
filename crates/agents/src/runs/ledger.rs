//! Where the turns of runs are recorded before anybody acts on them.

use async_trait::async_trait;
use isopod_store::{RunTurn, Store, StoreError};

/// Records turns. A turn that may have been recorded can be recorded again.
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
