//! Writes copies of runs' states to Redis, where readers of the agent kernel's keys look: `run:{id}:state`, and the set
//! `sys:active_runs` of those that have not ended. A run that has ended leaves the set, and its copy lasts a day. What a
//! node gave is in `run:{id}:agent:{node}:output` for an hour.
//!
//! What could not be written is written by the next change, or by the look that comes round from time to time.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use isopod_store::{RunId, StoreError};
use redis::Pipeline;
use tokio::sync::mpsc;

use super::Runs;
use crate::sessions::RedisMap;

const ACTIVE: &str = "sys:active_runs";
const KEEP_ENDED: Duration = Duration::from_secs(24 * 3600);
const KEEP_OUTPUT: Duration = Duration::from_secs(3600);
const TRY_AGAIN: Duration = Duration::from_secs(2);

/// Writes until the server stops.
pub(crate) async fn run_redis_copies(
    runs: Arc<Runs>,
    redis: Arc<RedisMap>,
    mut changed: mpsc::UnboundedReceiver<RunId>,
) {
    // Those that are not written as they are. At the start all that live: another server may have left them unwritten.
    let mut stale: HashSet<RunId> = runs.shared.store.live_runs().await.unwrap_or_default().into_iter().collect();
    // Outputs that were written; they do not change any more.
    let mut outputs: HashMap<RunId, HashSet<String>> = HashMap::new();
    loop {
        tokio::select! {
            () = runs.shared.stop.cancelled() => return,
            heard = changed.recv() => match heard {
                Some(run) => drop(stale.insert(run)),
                None => return,
            },
            () = tokio::time::sleep(TRY_AGAIN), if !stale.is_empty() => {}
        }
        // A burst of changes is one write per run.
        while let Ok(run) = changed.try_recv() {
            stale.insert(run);
        }
        for run in stale.clone() {
            match write_copy(&runs, &redis, &run, &mut outputs).await {
                Ok(true) => drop(stale.remove(&run)),
                Ok(false) => break,
                Err(error) => {
                    tracing::warn!(%run, error = isopod_wire::error_chain(&error), "a run's state was not copied")
                }
            }
        }
    }
}

/// False when Redis does not answer.
async fn write_copy(
    runs: &Runs,
    redis: &RedisMap,
    run: &RunId,
    outputs: &mut HashMap<RunId, HashSet<String>>,
) -> Result<bool, StoreError> {
    let Some(row) = runs.shared.store.find_run(run).await? else { return Ok(true) };
    let (key, state) = (format!("run:{run}:state"), runs.state(&row).await?.to_string());
    let mut commands = Pipeline::new();
    if row.status.is_terminal() {
        commands.cmd("SET").arg(&key).arg(state).arg("EX").arg(KEEP_ENDED.as_secs());
        commands.cmd("SREM").arg(ACTIVE).arg(run.as_str());
    } else {
        commands.cmd("SET").arg(&key).arg(state);
        commands.cmd("SADD").arg(ACTIVE).arg(run.as_str());
    }
    let written = outputs.entry(run.clone()).or_default();
    let mut fresh = Vec::new();
    for node in runs.shared.store.run_nodes(run).await? {
        let (id, output) = (node.spec.id, node.output);
        if let Some(output) = output.filter(|_| !written.contains(&id)) {
            let key = format!("run:{run}:agent:{id}:output");
            commands.cmd("SET").arg(key).arg(output.to_string()).arg("EX").arg(KEEP_OUTPUT.as_secs());
            fresh.push(id);
        }
    }
    if !redis.run(&commands).await {
        return Ok(false);
    }
    written.extend(fresh);
    if row.status.is_terminal() {
        outputs.remove(run);
    }
    Ok(true)
}
