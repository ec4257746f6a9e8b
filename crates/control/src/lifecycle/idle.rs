//! Closes connections into sandboxes that were idle for a while, because each costs one descriptor here and one in the
//! guest.

use std::sync::Arc;
use std::time::Duration;

use super::fleet::Fleet;

/// Runs until the server stops.
pub(crate) async fn run_idle_close(fleet: Arc<Fleet>) {
    let idle_for = fleet.settings.upstream_idle;
    let mut pace = tokio::time::interval((idle_for / 3).max(Duration::from_millis(10)));
    pace.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = fleet.stop.cancelled() => return,
            _ = pace.tick() => {}
        }
        for sandbox in fleet.all() {
            if let Some(life) = &sandbox.view().life {
                life.upstreams.close_idle();
                life.deliveries.close_idle(idle_for);
            }
        }
    }
}
