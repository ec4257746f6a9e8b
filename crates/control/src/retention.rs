//! Removes files that are no longer used: expired executions, and executions and volumes whose removal was interrupted.

use std::sync::Arc;
use std::time::Duration;

use isopod_files::workspace::EXECUTION_KEY;
use isopod_files::{FileError, FileStore, blocking};
use isopod_store::clock::Timestamp;
use isopod_store::{ExecutionName, StoreError, TeamId};
use tokio_util::sync::CancellationToken;

use crate::lifecycle::Fleet;

/// Why a round failed.
#[derive(Debug, thiserror::Error)]
enum RoundError {
    #[error("could not query the database")]
    Store(#[from] StoreError),
    #[error("could not remove files")]
    Files(#[from] FileError),
}

/// Runs at this interval until the server stops.
pub async fn run_retention(store: Arc<FileStore>, fleet: Arc<Fleet>, every: Duration, stop: CancellationToken) {
    let mut pace = tokio::time::interval(every.max(Duration::from_millis(10)));
    pace.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            _ = pace.tick() => {}
        }
        if let Err(error) = run_round(&store, &fleet).await {
            tracing::warn!(
                error = isopod_wire::error_chain(&error),
                "could not remove old files of the workspace; will retry"
            );
        }
    }
}

async fn run_round(files: &Arc<FileStore>, fleet: &Fleet) -> Result<(), RoundError> {
    let keep = files.execution_retention();
    let unused_since = keep.map_or(Timestamp(i64::MIN), |keep| Timestamp::now().minus(keep));
    for (team, execution) in fleet.store.stale_executions(unused_since).await? {
        if is_used(fleet, &team, &execution).await? {
            continue;
        }
        fleet.store.begin_removing_execution(&execution, unused_since).await?;
        // Check again, now that no new sandbox can use it.
        if is_used(fleet, &team, &execution).await? {
            fleet.store.keep_execution(&execution).await?;
            continue;
        }
        finish_removal(files, fleet, &execution).await?;
    }
    for volume in fleet.store.volumes_to_remove().await? {
        files.remove_volume(&volume).await?;
        fleet.store.forget_volume(&volume).await?;
    }
    Ok(())
}

/// Whether a live sandbox of this team may have the execution mounted, here or on another server that shares the
/// database. Only the team's own sandboxes count: metadata of other teams' sandboxes mounts nothing.
pub async fn is_used(fleet: &Fleet, team: &TeamId, execution: &ExecutionName) -> Result<bool, StoreError> {
    let has_it = |metadata: &std::collections::BTreeMap<String, String>| {
        metadata.get(EXECUTION_KEY).is_some_and(|id| id == execution.as_str())
    };
    let all = fleet.all();
    let is_used_here = all.iter().any(|sandbox| sandbox.team() == team && has_it(&sandbox.view().row.metadata));
    Ok(is_used_here || fleet.store.is_in_metadata_elsewhere(team, EXECUTION_KEY, execution.as_str()).await?)
}

/// Removes the files of an execution that can no longer be used, and frees its id.
async fn finish_removal(store: &Arc<FileStore>, fleet: &Fleet, execution: &ExecutionName) -> Result<(), RoundError> {
    let files = store.files(execution.clone()).await?;
    blocking(move || files.remove_everything()).await?;
    fleet.store.forget_execution(execution).await?;
    Ok(())
}
