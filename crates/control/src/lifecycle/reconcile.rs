//! Makes the store and the node agree after a start, in both directions. The node is the authority on what exists, the
//! store on what was intended.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use isopod_store::clock::Timestamp;
use isopod_store::{Ending, Level, SandboxRow, State, StoreError};
use isopod_wire::SandboxId;
use isopod_wire::node::{EndReason, Incarnation, NodeEvent, NodeSandbox, NodeState, PauseMode};

use super::controller;
use super::create::has_server_label;
use super::fleet::Fleet;

/// What was changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Reconciled {
    /// Sandboxes that have a controller again.
    pub(crate) adopted: u32,
    /// Rows that were ended because their sandbox is gone.
    pub(crate) ended: u32,
    /// Sandboxes and snapshots that were removed because no row refers to them.
    pub(crate) removed: u32,
}

/// An interrupted pause is completed. The sandbox must not time out before that.
const TIME_TO_PAUSE: Duration = Duration::from_secs(60);

/// A node that starts together with the server reports dead sandboxes at once.
const TIME_TO_REPORT: Duration = Duration::from_millis(20);

pub(crate) async fn reconcile(fleet: &Arc<Fleet>) -> Result<Reconciled, StoreError> {
    let mut reported = collect_reports(fleet).await;
    let mut on_node: HashMap<SandboxId, NodeSandbox> =
        fleet.node.list().await.into_iter().map(|found| (found.incarnation.sandbox.clone(), found)).collect();
    let mut done = Reconciled::default();
    for row in fleet.store.live_sandboxes().await? {
        match (row.state, on_node.remove(&row.id)) {
            (State::Creating, found) => {
                if let Some(found) = found {
                    fleet.kill_unrecorded(&found.incarnation).await;
                    done.removed += 1;
                }
                end_row(fleet, row, Ending::CreateInterrupted).await?;
                done.ended += 1;
            }
            (_, Some(found)) => {
                adopt(fleet, row, &found).await?;
                done.adopted += 1;
            }
            (State::Ending(reason), None) => {
                end_row(fleet, row, reason).await?;
                done.ended += 1;
            }
            (_, None) => {
                let reason = row.incarnation().and_then(|life| reported.remove(&life));
                end_row(fleet, row, reason.map_or(Ending::Lost, Ending::from)).await?;
                done.ended += 1;
            }
        }
    }
    done.removed += remove_unknown(fleet, on_node).await;
    for (incarnation, reason) in reported {
        fleet.node_ended(incarnation, reason).await;
    }
    fleet.store.settle_keys().await?;
    done.removed += remove_half_made_snapshots(fleet).await?;
    Ok(done)
}

/// Removes what a server that died was taking: snapshots to keep, and those of forks. Forgets those that are not there.
async fn remove_half_made_snapshots(fleet: &Fleet) -> Result<u32, StoreError> {
    let interrupted = fleet.store.abandon_interrupted_snapshots().await?;
    if interrupted > 0 {
        tracing::warn!(interrupted, "the server stopped while it took snapshots");
    }
    let removed = fleet.remove_unrecorded_snapshots().await?;
    let on_node = fleet.node.snapshots().await.into_iter().map(|snapshot| snapshot.id).collect();
    let lost = fleet.store.abandon_lost_snapshots(&on_node).await?;
    if lost > 0 {
        tracing::warn!(lost, "forgot snapshots that are not on this node; backups do not have them");
    }
    Ok(removed)
}

async fn collect_reports(fleet: &Fleet) -> HashMap<Incarnation, EndReason> {
    let mut reported = HashMap::new();
    while let Ok(Some(NodeEvent::Ended { incarnation, reason })) =
        tokio::time::timeout(TIME_TO_REPORT, fleet.node.next_event()).await
    {
        reported.insert(incarnation, reason);
    }
    reported
}

pub(super) async fn adopt(fleet: &Arc<Fleet>, mut row: SandboxRow, found: &NodeSandbox) -> Result<(), StoreError> {
    let was = row.state;
    let now = Timestamp::now();
    row.execution = Some(found.incarnation.execution.clone());
    row.state = match (was, found.state) {
        (State::Ending(reason), _) => State::Ending(reason),
        (_, NodeState::Running) => State::Running,
        (_, NodeState::Frozen | NodeState::Saved) => State::Paused(PauseMode::Memory),
        (_, NodeState::Stopped) => State::Paused(PauseMode::Filesystem),
    };
    match (was, row.state) {
        (State::Paused(_), State::Running) => row.ends_at = now.plus(row.timeout),
        (State::Pausing(_), State::Running) => row.ends_at = row.ends_at.max(now.plus(TIME_TO_PAUSE)),
        _ => {}
    }
    fleet.store.save_sandbox(&row).await?;
    fleet.journal.line(&row.id, Level::Info, "sandbox adopted by a new server", &[]);
    let slot = row.state.takes_a_place().then(|| fleet.slots.take_for_adoption(&row.team));
    let running = row.state == State::Running;
    let sandbox = controller::adopt(fleet, row, slot);
    if let (State::Pausing(mode), true) = (was, running) {
        tokio::spawn(async move {
            if let Err(error) = sandbox.pause(mode, false).await {
                tracing::warn!(sandbox = %sandbox.id(), error = isopod_wire::error_chain(&error), "could not complete an interrupted pause");
            }
        });
    }
    Ok(())
}

pub(super) async fn end_row(fleet: &Fleet, mut row: SandboxRow, reason: Ending) -> Result<(), StoreError> {
    row.state = State::Ended(reason);
    row.ended_at = Some(Timestamp::now());
    fleet.store.save_sandbox(&row).await?;
    fleet.counters.ended(reason.text());
    fleet.journal.line(&row.id, Level::Error, "sandbox ended", &[("reason", reason.text().to_owned())]);
    fleet.journal.event(isopod_store::EventType::Killed, &row, serde_json::json!({ "reason": reason.text() }));
    Ok(())
}

/// Removes our sandboxes that have no row. Sandboxes of others, such as a one-off run from the command line, are not
/// touched.
async fn remove_unknown(fleet: &Arc<Fleet>, on_node: HashMap<SandboxId, NodeSandbox>) -> u32 {
    let mut removed = 0;
    for found in on_node.into_values() {
        if has_server_label(&found.spec) {
            fleet.kill_unrecorded(&found.incarnation).await;
            removed += 1;
        }
    }
    removed
}
