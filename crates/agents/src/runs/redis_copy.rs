//! Writes copies of runs' states to Redis, under the agent kernel's keys: `run:{id}:state`, and the set
//! `sys:active_runs` of active runs. An ended run is removed from the set, and its copy is kept for a day. The output
//! of a node is in `run:{id}:agent:{node}:output` for an hour.
//!
//! If a write fails, it is retried after a short wait.

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
const RETRY_AFTER: Duration = Duration::from_secs(2);

/// Writes until the server stops.
pub(crate) async fn run_redis_copies(
    runs: Arc<Runs>,
    redis: Arc<RedisMap>,
    mut changed: mpsc::UnboundedReceiver<RunId>,
) {
    // Runs whose copies are out of date. Initially all active ones, because another server may not have written them.
    let mut stale: HashSet<RunId> = runs.shared.store.live_runs().await.unwrap_or_default().into_iter().collect();
    // Outputs that have been written. They do not change any more.
    let mut outputs: HashMap<RunId, HashSet<String>> = HashMap::new();
    loop {
        tokio::select! {
            () = runs.shared.stop.cancelled() => return,
            heard = changed.recv() => match heard {
                Some(run) => drop(stale.insert(run)),
                None => return,
            },
            () = tokio::time::sleep(RETRY_AFTER), if !stale.is_empty() => {}
        }
        // A burst of changes becomes one write per run.
        while let Ok(run) = changed.try_recv() {
            stale.insert(run);
        }
        for run in stale.clone() {
            match write_copy(&runs, &redis, &run, &mut outputs).await {
                Ok(true) => drop(stale.remove(&run)),
                Ok(false) => break,
                Err(error) => {
                    tracing::warn!(%run, error = isopod_wire::error_chain(&error), "could not copy the state of a run")
                }
            }
        }
    }
}

/// Returns false if Redis is unreachable.
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
