//! Compares the store, the controllers and the node from time to time while the server runs, and repairs differences
//! without a restart.
//!
//! One of our sandboxes without a controller is removed. A controller whose sandbox is not on the node verifies that
//! itself, because only it knows which calls are in progress. A row that has no controller in two consecutive checks
//! gets one, or its end is recorded.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use isopod_store::{Ending, SandboxRow, State, StoreError, StoreFile};
use isopod_wire::SandboxId;
use isopod_wire::node::NodeSandbox;

use super::create::has_server_label;
use super::fleet::Fleet;
use super::reconcile::{Reconciled, adopt, end_row};

/// Runs at this interval until the server stops.
pub(crate) async fn run_recheck(fleet: Arc<Fleet>, every: Duration) {
    let mut pace = tokio::time::interval(every.max(Duration::from_millis(10)));
    pace.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    // Skip the first tick, which fires at once, because everything was just reconciled.
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
                tracing::warn!(error = isopod_wire::error_chain(&error), "could not check all sandboxes")
            }
        }
        if done != Reconciled::default() {
            tracing::warn!(
                adopted = done.adopted,
                ended = done.ended,
                removed = done.removed,
                "repaired differences between the store and the node"
            );
        }
    }
}

async fn check_store(fleet: &Fleet) {
    match fleet.store.ensure_file().await {
        Ok(StoreFile::InPlace) => {}
        Ok(StoreFile::Restored) => tracing::error!("the database file was missing; it was restored"),
        Ok(StoreFile::Replaced) => {
            tracing::error!(
                "the database file was replaced; this server keeps using the old one until it is restarted"
            );
        }
        Err(error) => tracing::error!(
            error = isopod_wire::error_chain(&error),
            "the database file is missing and could not be restored"
        ),
    }
}

async fn recheck(
    fleet: &Arc<Fleet>,
    suspects: &mut HashSet<SandboxId>,
    done: &mut Reconciled,
) -> Result<(), StoreError> {
    // Controllers first: a sandbox that is created after this line is on the node in the list below.
    let controllers = fleet.all();
    let listed = fleet.node.list().await;
    let on_node: HashMap<SandboxId, NodeSandbox> =
        listed.into_iter().map(|found| (found.incarnation.sandbox.clone(), found)).collect();
    for controller in controllers.iter().filter(|controller| !on_node.contains_key(controller.id())) {
        done.ended += u32::from(controller.verify().await);
    }
    let rows = fleet.store.live_sandboxes().await?;
    remove_unknown(fleet, &on_node, &rows, done).await;
    adopt_or_end_rows(fleet, &on_node, rows, suspects, done).await?;
    done.removed += fleet.remove_unrecorded_snapshots().await?;
    Ok(())
}

/// Removes sandboxes that have our label but neither a controller nor a row.
async fn remove_unknown(
    fleet: &Arc<Fleet>,
    on_node: &HashMap<SandboxId, NodeSandbox>,
    rows: &[SandboxRow],
    done: &mut Reconciled,
) {
    let rows: HashSet<&SandboxId> = rows.iter().map(|row| &row.id).collect();
    for (id, found) in on_node {
        if has_server_label(&found.spec) && !rows.contains(id) && fleet.is_unknown(id) {
            fleet.kill_unrecorded(&found.incarnation).await;
            done.removed += 1;
        }
    }
}

/// Adopts or ends rows that have no controller. One check is not enough, because a row may be written just after its
/// controller ended.
async fn adopt_or_end_rows(
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
