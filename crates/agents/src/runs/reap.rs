//! From time to time: runs and sandboxes are compared, both ways. A run that lives and has no task gets one; a sandbox
//! whose run has ended goes.

use std::sync::Arc;
use std::time::Duration;

use isopod_store::StoreError;

use super::Runs;

/// Looks at this pace until the server stops.
pub(crate) async fn run_reaper(runs: Arc<Runs>, every: Duration) {
    let mut pace = tokio::time::interval(every.max(Duration::from_millis(10)));
    pace.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = runs.shared.stop.cancelled() => return,
            _ = pace.tick() => {}
        }
        if let Err(error) = reap(&runs).await {
            tracing::warn!(error = isopod_wire::error_chain(&error), "runs and their sandboxes were not all looked at");
        }
    }
}

pub(super) async fn reap(runs: &Runs) -> Result<(), StoreError> {
    runs.take_over_all().await?;
    let holding = match runs.shared.executor.holding().await {
        Ok(holding) => holding,
        Err(error) => {
            tracing::warn!(error = isopod_wire::error_chain(&error), "the sandboxes of runs could not be listed");
            return Ok(());
        }
    };
    for (team, run) in holding {
        // A sandbox under a name that is no run of ours belongs to an agent that asked for it by itself.
        let has_ended = runs.find(&team, &run).await?.is_some_and(|row| row.status.is_terminal());
        if has_ended && runs.shared.store.reopen_cleanup(&run).await? {
            tracing::warn!(%run, "a run that has ended had a sandbox again; it goes");
            runs.shared.cleanup_wanted.notify_one();
        }
    }
    Ok(())
}
