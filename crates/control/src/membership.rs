//! This server's place among those that share a database: it renews its lease, so that the others know that it answers
//! for its own sandboxes, and gives it up when it stops.

use std::time::Duration;

use isopod_store::{Store, StoreError};
use tokio_util::sync::CancellationToken;

/// The version of this server, for the other ones.
pub(crate) const VERSION: &str = env!("CARGO_PKG_VERSION");

/// How often a lease is renewed while it holds, so that a slow database or a lost message doesn't end it.
const RENEWALS_PER_LEASE: u32 = 5;
/// How long a stopping server waits for the database.
const TIME_TO_LEAVE: Duration = Duration::from_secs(2);

/// Takes the lease at once, and renews it until the server stops.
pub(crate) async fn run_membership(store: Store, lease: Duration, stop: CancellationToken) {
    let mut pace = tokio::time::interval((lease / RENEWALS_PER_LEASE).max(Duration::from_millis(10)));
    pace.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut is_held = true;
    loop {
        tokio::select! {
            () = stop.cancelled() => break,
            _ = pace.tick() => {}
        }
        is_held = report(store.renew_lease(lease, VERSION).await, is_held);
    }
    // The others say at once that this server is gone, and do not send anybody here.
    let left = tokio::time::timeout(TIME_TO_LEAVE, store.renew_lease(Duration::ZERO, VERSION)).await;
    if !matches!(left, Ok(Ok(()))) {
        tracing::debug!("the database didn't answer in time; other servers notice the end of the lease by themselves");
    }
}

/// Logs only what has changed, because an outage of the database lasts for many renewals.
fn report(renewed: Result<(), StoreError>, was_held: bool) -> bool {
    match &renewed {
        Ok(()) if !was_held => tracing::info!("renewed the lease of this server again"),
        Err(error) if was_held => tracing::warn!(
            error = isopod_wire::error_chain(error),
            "could not renew the lease of this server; other servers will call it unreachable"
        ),
        _ => {}
    }
    renewed.is_ok()
}
