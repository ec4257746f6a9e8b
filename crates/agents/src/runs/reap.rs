//! Periodically compares runs and sandboxes. An active run without a task gets one. A sandbox whose run has ended is
//! removed.

use std::sync::Arc;
use std::time::Duration;

use isopod_store::StoreError;

use super::Runs;

/// Compares at this interval until the server stops.
pub(crate) async fn run_reaper(runs: Arc<Runs>, every: Duration) {
    let mut pace = tokio::time::interval(every.max(Duration::from_millis(10)));
    pace.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = runs.shared.stop.cancelled() => return,
            _ = pace.tick() => {}
        }
        if let Err(error) = reap(&runs).await {
            tracing::warn!(error = isopod_wire::error_chain(&error), "could not compare all runs with their sandboxes");
        }
    }
}

pub(super) async fn reap(runs: &Runs) -> Result<(), StoreError> {
    runs.take_over_all().await?;
    let holding = match runs.shared.executor.holding().await {
        Ok(holding) => holding,
        Err(error) => {
            tracing::warn!(error = isopod_wire::error_chain(&error), "could not list the sandboxes of runs");
            return Ok(());
        }
    };
    for (team, run) in holding {
        // If the name is not one of our runs, an agent requested the sandbox by itself.
        let has_ended = runs.find(&team, &run).await?.is_some_and(|row| row.status.is_terminal());
        if has_ended && runs.shared.store.reopen_cleanup(&run).await? {
            tracing::warn!(%run, "an ended run has a sandbox again; removing it");
            runs.shared.cleanup_wanted.notify_one();
        }
    }
    Ok(())
}
