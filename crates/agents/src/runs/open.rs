//! Opens the runs of a server when it starts: takes over those of an earlier server and starts the background tasks.

use std::sync::Arc;
use std::time::Duration;

use isopod_control::ServeConfig;
use isopod_outbound::{Policy, Trust};
use isopod_store::StoreError;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::Runs;
use super::agent::Agents;
use super::live_logs::{LiveLogs, run_live_logs, run_live_logs_listener};
use super::mirror::Mirror;
use super::reap::run_reaper;
use super::redis_copy::run_redis_copies;
use super::session_executor::SessionExecutor;
use super::shared::RunParts;
use crate::config::RunsConfig;
use crate::sessions::Sessions;

const CLEANUP_WAIT: Duration = Duration::from_millis(250);
/// The executor enforces the timeout of a node itself. This is for the case that it does not.
const OVERTIME: Duration = Duration::from_secs(5);

/// Spawns tasks in `background` that end when the server stops.
pub(crate) async fn open_runs(
    settings: &RunsConfig,
    config: &ServeConfig,
    sessions: &Arc<Sessions>,
    stop: &CancellationToken,
    background: &mut JoinSet<()>,
) -> Result<Arc<Runs>, StoreError> {
    let copies = sessions.redis().map(|redis| (Arc::clone(redis), Mirror::new()));
    let (mirror, copies) = match copies {
        Some((redis, (mirror, changed))) => (mirror, Some((redis, changed))),
        None => (Mirror::default(), None),
    };
    let (live_logs, published) = match sessions.redis() {
        Some(redis) => {
            let (live_logs, waiting) = LiveLogs::new();
            (live_logs, Some((Arc::clone(redis), waiting)))
        }
        None => (LiveLogs::default(), None),
    };
    let agent_policy = if settings.allow_internal_agents { Policy::open() } else { config.outbound.clone() };
    let trust = Trust::new(config.webhook_authorities.clone());
    let runs = Runs::new(RunParts {
        store: config.store.clone(),
        ledger: Arc::new(config.store.clone()),
        executor: Arc::new(SessionExecutor::new(Arc::clone(sessions), config.store.clone())),
        agents: Agents::new(trust, settings.agent_url.clone(), agent_policy),
        mirror,
        live_logs,
        retry_wait: settings.retry_wait,
        overtime: OVERTIME,
        cleanup_wait: CLEANUP_WAIT,
        cleanup_deadline: settings.cleanup_deadline,
        stop: stop.clone(),
    });
    if let Some((redis, changed)) = copies {
        background.spawn(run_redis_copies(Arc::clone(&runs), redis, changed));
    }
    if let Some((redis, waiting)) = published {
        background.spawn(run_live_logs_listener(Arc::clone(&runs), Arc::clone(&redis)));
        background.spawn(stop_after(stop.clone(), run_live_logs(redis, waiting)));
    }
    let taken = runs.take_over_all().await?;
    if taken > 0 {
        tracing::info!(taken, "took over runs");
    }
    background.spawn(Arc::clone(&runs).run_cleanups());
    background.spawn(run_reaper(Arc::clone(&runs), config.recheck_every));
    Ok(runs)
}

/// Runs a task until the server stops.
async fn stop_after(stop: CancellationToken, task: impl Future<Output = ()>) {
    tokio::select! {
        () = stop.cancelled() => {}
        () = task => {}
    }
}
