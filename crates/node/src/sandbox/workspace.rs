//! Keeps the workspace in sandboxes: what nobody serves any more is mounted anew, while everything else goes on.
//!
//! At the start of a server and for as long as it lives, because the one who serves may lose all connections at any time.

use std::sync::Arc;
use std::time::Duration;

use isopod_wire::node::NodeState;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::{Fleet, Sandbox};
use crate::provision::{Provisioner, lost_mounts};
use crate::record::Record;

/// How often it is looked at.
const EVERY: Duration = Duration::from_secs(1);
/// Sandboxes whose mounts are made at the same time.
const MAX_AT_ONCE: usize = 4;

/// Looks at once, and then again and again until the node is closed.
pub(crate) fn maintain_workspaces(fleet: &Arc<Fleet>) {
    if fleet.provisioner.host.workspace.get().is_none() {
        return;
    }
    let fleet = Arc::downgrade(fleet);
    tokio::spawn(async move {
        while let Some(fleet) = fleet.upgrade() {
            fleet.restore_workspaces().await;
            drop(fleet);
            tokio::time::sleep(EVERY).await;
        }
    });
}

impl Fleet {
    async fn restore_workspaces(&self) {
        // First those that should have something, then what is served: whoever comes in between has what it needs.
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

    /// Those that run. A frozen one gets its mounts when it is thawed, and nothing in there moves before.
    fn with_mounts(&self) -> Vec<(Arc<Sandbox>, Record)> {
        let sandboxes: Vec<_> = self.sandboxes().values().cloned().collect();
        sandboxes.into_iter().filter_map(|sandbox| running_record(&sandbox).map(|record| (sandbox, record))).collect()
    }
}

async fn restore(provisioner: Arc<Provisioner>, sandbox: &Sandbox) {
    let _turn = sandbox.mounting.lock().await;
    // It may have ended or got its mounts while we waited for our turn.
    let Some(record) = running_record(sandbox) else { return };
    let restored = tokio::task::spawn_blocking(move || {
        if let Some(served) = provisioner.served_parts() {
            provisioner.restore_workspace(&record, &served);
        }
    });
    // A panic in there was told; the next round tries again.
    let _ = restored.await;
}

/// Nothing while somebody changes its state: the next round sees what became of it.
fn running_record(sandbox: &Sandbox) -> Option<Record> {
    let life = sandbox.life.try_lock().ok()?;
    let has_mounts = life.record.spec.as_ref().is_some_and(|spec| !spec.mounts.is_empty());
    (has_mounts && !life.ending && life.state() == NodeState::Running).then(|| life.record.clone())
}
