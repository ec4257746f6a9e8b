//! While the server runs: looks from time to time whether the store, the controllers and the node still speak of the same
//! sandboxes. What an accident has separated is put right without a restart.
//!
//! A sandbox of ours without a controller is removed. A controller whose sandbox is not on the node looks for itself, because only
//! it knows what is under way. A row without a controller at two looks in a row gets one, or its end.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use isopod_store::{Ending, SandboxRow, State, StoreError, StoreFile};
use isopod_wire::SandboxId;
use isopod_wire::node::NodeSandbox;

use super::create::is_ours;
use super::fleet::Fleet;
use super::reconcile::{Reconciled, adopt, end_row};

/// Looks at this pace until the server stops.
pub(crate) async fn run_recheck(fleet: Arc<Fleet>, every: Duration) {
    let mut pace = tokio::time::interval(every.max(Duration::from_millis(10)));
    pace.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    // The first tick is at once, and there has just been a look at everything.
    pace.tick().await;
    let mut suspects = HashSet::new();
    loop {
        tokio::select! {
            () = fleet.stop.cancelled() => return,
            _ = pace.tick() => {}
        }
        check_store(&fleet).await;
        let mut done = Reconciled::default();
        match recheck(&fleet, &mut suspects, &mut done).await {
            Ok(()) => {}
            Err(error) => {
                tracing::warn!(error = isopod_wire::error_chain(&error), "the sandboxes were not all looked at")
            }
        }
        if done != Reconciled::default() {
            tracing::warn!(adopted = done.adopted, ended = done.ended, removed = done.removed, "put right");
        }
    }
}

async fn check_store(fleet: &Fleet) {
    match fleet.store.ensure_file().await {
        Ok(StoreFile::InPlace) => {}
        Ok(StoreFile::Restored) => tracing::error!("the store's file was gone; it was written again"),
        Ok(StoreFile::Replaced) => {
            tracing::error!(
                "the store's file was replaced; this server goes on with the old one until it is restarted"
            );
        }
        Err(error) => tracing::error!(error = isopod_wire::error_chain(&error), "the store's file is gone"),
    }
}

async fn recheck(
    fleet: &Arc<Fleet>,
    suspects: &mut HashSet<SandboxId>,
    done: &mut Reconciled,
) -> Result<(), StoreError> {
    // Owners first: whoever comes to be after this look is on the node at the next one.
    let controllers = fleet.all();
    let listed = fleet.node.list().await;
    let on_node: HashMap<SandboxId, NodeSandbox> =
        listed.into_iter().map(|found| (found.incarnation.sandbox.clone(), found)).collect();
    for controller in controllers.iter().filter(|controller| !on_node.contains_key(controller.id())) {
        done.ended += u32::from(controller.verify().await);
    }
    let rows = fleet.store.live_sandboxes().await?;
    remove_unknown(fleet, &on_node, &rows, done).await;
    give_controllers(fleet, &on_node, rows, suspects, done).await
}

/// Removes what is ours by its label and has neither controller nor row.
async fn remove_unknown(
    fleet: &Arc<Fleet>,
    on_node: &HashMap<SandboxId, NodeSandbox>,
    rows: &[SandboxRow],
    done: &mut Reconciled,
) {
    let rows: HashSet<&SandboxId> = rows.iter().map(|row| &row.id).collect();
    for (id, found) in on_node {
        if is_ours(&found.spec) && !rows.contains(id) && fleet.is_unknown(id) {
            fleet.kill_unrecorded(&found.incarnation).await;
            done.removed += 1;
        }
    }
}

/// Sees to rows whose controller is gone. One look is not enough: a row is written a moment after its controller has left.
async fn give_controllers(
    fleet: &Arc<Fleet>,
    on_node: &HashMap<SandboxId, NodeSandbox>,
    rows: Vec<SandboxRow>,
    suspects: &mut HashSet<SandboxId>,
    done: &mut Reconciled,
) -> Result<(), StoreError> {
    let before = std::mem::take(suspects);
    for row in rows.into_iter().filter(|row| fleet.is_unknown(&row.id)) {
        if !before.contains(&row.id) {
            suspects.insert(row.id);
            continue;
        }
        match (row.state, on_node.get(&row.id)) {
            (State::Creating, Some(found)) => {
                fleet.kill_unrecorded(&found.incarnation).await;
                end_row(fleet, row, Ending::CreateInterrupted).await?;
                done.removed += 1;
            }
            (_, Some(found)) => {
                adopt(fleet, row, found).await?;
                done.adopted += 1;
            }
            (state, None) => {
                let reason = if let State::Ending(reason) = state { reason } else { Ending::Lost };
                end_row(fleet, row, reason).await?;
                done.ended += 1;
            }
        }
    }
    Ok(())
}
