//! Keeps the workspace mounted in sandboxes. Mounts that are no longer served are mounted again, while everything else
//! continues.
//!
//! This runs when a server starts and as long as it runs, because the storage daemon may lose all connections at any
//! time.

use std::sync::Arc;
use std::time::Duration;

use isopod_wire::node::NodeState;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::{Sandbox, Sandboxes};
use crate::provision::{Provisioner, lost_mounts};
use crate::record::Record;

/// How often the mounts are checked.
const EVERY: Duration = Duration::from_secs(1);
/// How many sandboxes are mounted at the same time.
const MAX_AT_ONCE: usize = 4;

/// Checks now, and then regularly until the node is closed.
pub(crate) fn maintain_workspaces(sandboxes: &Arc<Sandboxes>) {
    if sandboxes.provisioner.host.workspace.get().is_none() {
        return;
    }
    let sandboxes = Arc::downgrade(sandboxes);
    tokio::spawn(async move {
        while let Some(sandboxes) = sandboxes.upgrade() {
            sandboxes.restore_workspaces().await;
            drop(sandboxes);
            tokio::time::sleep(EVERY).await;
        }
    });
}

impl Sandboxes {
    async fn restore_workspaces(&self) {
        // List the sandboxes first and what is served second. A sandbox that is created in between already has its
        // mounts.
        let sandboxes = self.with_mounts();
        if sandboxes.is_empty() {
            return;
        }
        let provisioner = Arc::clone(&self.provisioner);
        let served = tokio::task::spawn_blocking(move || provisioner.served_parts()).await;
        let Ok(Some(served)) = served else { return };
        let turns = Arc::new(Semaphore::new(MAX_AT_ONCE));
        let mut restoring = JoinSet::new();
        for (sandbox, record) in sandboxes {
            if !lost_mounts(&record, &served).is_empty() {
                let (provisioner, turns) = (Arc::clone(&self.provisioner), Arc::clone(&turns));
                restoring.spawn(async move {
                    let _turn = turns.acquire().await;
                    restore(provisioner, &sandbox).await;
                });
            }
        }
        restoring.join_all().await;
    }

    /// Running sandboxes with mounts. A frozen one gets its mounts when it is thawed, because nothing in it runs
    /// before.
    fn with_mounts(&self) -> Vec<(Arc<Sandbox>, Record)> {
        let sandboxes: Vec<_> = self.by_id().values().cloned().collect();
        sandboxes.into_iter().filter_map(|sandbox| running_record(&sandbox).map(|record| (sandbox, record))).collect()
    }
}

async fn restore(provisioner: Arc<Provisioner>, sandbox: &Sandbox) {
    let _turn = sandbox.mounting.lock().await;
    // It may have ended or got its mounts while we waited.
    let Some(record) = running_record(sandbox) else { return };
    let restored = tokio::task::spawn_blocking(move || {
        if let Some(served) = provisioner.served_parts() {
            provisioner.restore_workspace(&record, &served);
        }
    });
    // A panic has been reported. The next round tries again.
    let _ = restored.await;
}

/// Returns `None` while the state is being changed. The next round sees the result.
fn running_record(sandbox: &Sandbox) -> Option<Record> {
    let inner = sandbox.inner.try_lock().ok()?;
    let has_mounts = inner.record.spec.as_ref().is_some_and(|spec| !spec.mounts.is_empty());
    (has_mounts && !inner.ending && inner.state() == NodeState::Running).then(|| inner.record.clone())
}
