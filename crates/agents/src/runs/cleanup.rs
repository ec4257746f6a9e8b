//! Works the outbox off: what a run had is disposed of, and the agent service is told, again and again until both are
//! confirmed. It is never given up: the row is the only thing that still knows of the sandbox.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use isopod_store::clock::Timestamp;
use isopod_store::{Cleanup, StoreError};

use super::shared::Shared;

const AT_ONCE: usize = 16;
const BATCH: u32 = 200;
const MAX_WAIT: Duration = Duration::from_secs(60);
const DISPOSAL_TIMEOUT: Duration = Duration::from_secs(120);

/// Cleans up until the server stops.
pub(super) async fn run_cleanups(shared: Arc<Shared>) {
    loop {
        tokio::select! {
            // What was under way is still due for the next server.
            () = shared.stop.cancelled() => return,
            done = clean_up_due(&shared) => if let Err(error) = done {
                tracing::warn!(error = isopod_wire::error_chain(&error), "runs were not cleaned up");
                tokio::time::sleep(Duration::from_millis(500)).await;
            }
        }
        let wait = match shared.store.next_cleanup().await {
            Ok(Some(next)) => Timestamp::now().until(next).max(Duration::from_millis(1)).min(MAX_WAIT),
            _ => MAX_WAIT,
        };
        tokio::select! {
            () = shared.stop.cancelled() => return,
            () = shared.cleanup_wanted.notified() => {}
            () = tokio::time::sleep(wait) => {}
        }
    }
}

async fn clean_up_due(shared: &Shared) -> Result<(), StoreError> {
    let due = shared.store.due_cleanups(Timestamp::now(), BATCH).await?;
    let mut attempts = futures::stream::iter(due).map(|cleanup| clean_up(shared, cleanup)).buffer_unordered(AT_ONCE);
    while let Some((cleanup, error)) = attempts.next().await {
        let next = error.is_some().then(|| Timestamp::now().plus(wait_after(shared, cleanup.attempts)));
        if let Some(error) = &error {
            tracing::warn!(run = %cleanup.run, attempt = cleanup.attempts + 1, error, "a run is not cleaned up yet");
        }
        shared.store.record_cleanup(&cleanup, next, error).await?;
    }
    Ok(())
}

async fn clean_up(shared: &Shared, mut cleanup: Cleanup) -> (Cleanup, Option<String>) {
    let mut errors = Vec::new();
    if !cleanup.sandbox_done {
        let disposing = shared.executor.dispose(&cleanup.team, &cleanup.run);
        match tokio::time::timeout(DISPOSAL_TIMEOUT, disposing).await {
            Ok(Ok(disposed)) => {
                cleanup.sandbox_done = true;
                cleanup.killed |= disposed.killed;
            }
            Ok(Err(error)) => errors.push(isopod_wire::error_chain(&error)),
            Err(_) => errors.push(format!("the sandbox was not removed in {DISPOSAL_TIMEOUT:?}")),
        }
    }
    if !cleanup.agent_done {
        match shared.agents.clean_up(&cleanup.run).await {
            Ok(()) => cleanup.agent_done = true,
            Err(error) => errors.push(isopod_wire::error_chain(&error)),
        }
    }
    let error = (!errors.is_empty()).then(|| errors.join("; "));
    (cleanup, error)
}

fn wait_after(shared: &Shared, attempts: u32) -> Duration {
    shared.cleanup_wait.saturating_mul(1 << attempts.min(16)).min(MAX_WAIT)
}
