//! Processes the outbox: disposes of what a run used and tells its agent services, until both are confirmed. It never
//! gives up on a sandbox, because only the row still knows it. [`super::service_cleanup`] gives up on a service.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use isopod_store::clock::Timestamp;
use isopod_store::{Cleanup, StoreError};

use super::service_cleanup::clean_up_services;
use super::shared::Shared;

const MAX_CONCURRENT: usize = 16;
const BATCH: u32 = 200;
const MAX_WAIT: Duration = Duration::from_secs(60);
/// The interval between two checks for due cleanups, while some are running or after the store failed.
const BUSY_INTERVAL: Duration = Duration::from_millis(500);
/// The same interval while the server stops.
const DUE_INTERVAL: Duration = Duration::from_millis(10);
const DISPOSAL_TIMEOUT: Duration = Duration::from_secs(120);

/// Cleans up until the server stops. A slow run does not delay others.
pub(super) async fn run_cleanups(shared: Arc<Shared>) {
    let mut attempts = FuturesUnordered::new();
    let mut under_way = HashSet::new();
    loop {
        let due = shared.store.due_cleanups(Timestamp::now(), BATCH).await;
        let due = due.unwrap_or_else(|error| {
            tracing::warn!(error = isopod_wire::error_chain(&error), "could not clean up runs");
            Vec::new()
        });
        for cleanup in due {
            if under_way.len() < MAX_CONCURRENT && under_way.insert(cleanup.run.clone()) {
                attempts.push(clean_up(&shared, cleanup));
            }
        }
        let wait = if under_way.is_empty() { until_next(&shared).await } else { BUSY_INTERVAL };
        tokio::select! {
            // Running cleanups stay due, for the next server.
            () = shared.stop.cancelled() => return,
            () = shared.cleanup_wanted.notified() => {}
            () = tokio::time::sleep(wait) => {}
            Some((cleanup, error)) = attempts.next() => {
                under_way.remove(&cleanup.run);
                if let Err(error) = record(&shared, &cleanup, error).await {
                    tracing::warn!(error = isopod_wire::error_chain(&error), "could not clean up runs");
                    tokio::time::sleep(BUSY_INTERVAL).await;
                }
            }
        }
    }
}

async fn until_next(shared: &Shared) -> Duration {
    match shared.store.next_cleanup().await {
        Ok(Some(next)) => Timestamp::now().until(next).max(Duration::from_millis(1)).min(MAX_WAIT),
        Ok(None) => MAX_WAIT,
        Err(_) => BUSY_INTERVAL,
    }
}

async fn record(shared: &Shared, cleanup: &Cleanup, error: Option<String>) -> Result<(), StoreError> {
    let next = error.is_some().then(|| Timestamp::now().plus(wait_after(shared, cleanup.attempts)));
    if let Some(error) = &error {
        tracing::warn!(run = %cleanup.run, attempt = cleanup.attempts + 1, error, "could not clean up a run; will retry");
    }
    shared.store.record_cleanup(cleanup, next, error).await
}

/// Waits until every ended run has been cleaned up or a cleanup has failed, for at most `timeout`. The task that
/// cleans up must still be running.
pub(super) async fn finish_cleanups(shared: &Shared, timeout: Duration) {
    let finish = async {
        while !shared.store.due_cleanups(Timestamp::now(), 1).await?.is_empty() {
            shared.cleanup_wanted.notify_one();
            tokio::time::sleep(DUE_INTERVAL).await;
        }
        Ok::<_, StoreError>(())
    };
    match tokio::time::timeout(timeout, finish).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => {
            tracing::warn!(error = isopod_wire::error_chain(&error), "could not check for runs that are not cleaned up")
        }
        Err(_) => tracing::warn!("some runs are not cleaned up yet; the next server will do it"),
    }
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
        match clean_up_services(shared, &cleanup.run).await {
            Ok(unconfirmed) => {
                cleanup.agent_done = unconfirmed.is_empty();
                errors.extend(unconfirmed);
            }
            Err(error) => errors.push(isopod_wire::error_chain(&error)),
        }
    }
    let error = (!errors.is_empty()).then(|| errors.join("; "));
    (cleanup, error)
}

fn wait_after(shared: &Shared, attempts: u32) -> Duration {
    shared.cleanup_wait.saturating_mul(1 << attempts.min(16)).min(MAX_WAIT)
}
