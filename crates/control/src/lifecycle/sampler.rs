//! Records the resource usage of running sandboxes, and removes old records.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures::{StreamExt as _, stream};
use isopod_store::clock::Timestamp;
use isopod_store::service::Reading;
use isopod_store::{Retention, Sample};
use isopod_wire::node::{Incarnation, Usage};
use isopod_wire::{ExecutionId, Limits, SandboxId};
use tokio::time::Instant;

use super::fleet::Fleet;
use super::handle::Sandbox;

/// The number of concurrent calls to the node.
const MAX_CONCURRENT: usize = 16;
const PRUNE_EVERY: Duration = Duration::from_secs(60);

type Previous = HashMap<ExecutionId, (Instant, u64)>;

/// Runs at this interval until the server stops.
pub(crate) async fn run_sampler(fleet: Arc<Fleet>, every: Duration, retention: Retention) {
    let mut pace = tokio::time::interval(every.max(Duration::from_millis(10)));
    pace.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut previous = Previous::new();
    let mut pruned = Instant::now();
    loop {
        tokio::select! {
            () = fleet.stop.cancelled() => return,
            _ = pace.tick() => {}
        }
        previous = sample_all(&fleet, &previous).await;
        if pruned.elapsed() >= PRUNE_EVERY {
            pruned = Instant::now();
            prune(&fleet, &retention).await;
        }
    }
}

async fn sample_all(fleet: &Fleet, previous: &Previous) -> Previous {
    let read = stream::iter(fleet.all())
        .map(|sandbox| async move {
            let (incarnation, limits, usage) = read_usage(fleet, &sandbox).await?;
            Some((incarnation, limits, usage, Instant::now()))
        })
        .buffer_unordered(MAX_CONCURRENT)
        .filter_map(|read| async { read })
        .collect::<Vec<_>>()
        .await;
    let samples: Vec<(SandboxId, Sample)> = read
        .iter()
        .map(|(incarnation, limits, usage, at)| {
            let before = previous.get(&incarnation.execution);
            (incarnation.sandbox.clone(), sample_of(limits, usage, cpu_share(before, usage, *at)))
        })
        .collect();
    if let Err(error) = fleet.store.insert_samples(&samples).await {
        tracing::warn!(error = isopod_wire::error_chain(&error), "could not record resource usage");
    }
    let readings: Vec<Reading> = read
        .iter()
        .map(|(life, _, usage, _)| Reading::new(life.sandbox.as_str(), life.execution.as_str(), usage))
        .collect();
    if let Err(error) = fleet.store.add_usage(&readings).await {
        tracing::warn!(error = isopod_wire::error_chain(&error), "could not add up resource usage");
    }
    read.into_iter().map(|(life, _, usage, at)| (life.execution, (at, usage.cpu_micros))).collect()
}

/// Takes a sample now, for a request before the first recorded one. Its CPU share is zero.
pub async fn sample_now(fleet: &Fleet, sandbox: &Sandbox) -> Option<Sample> {
    let (_, limits, usage) = read_usage(fleet, sandbox).await?;
    Some(sample_of(&limits, &usage, 0.0))
}

/// Adds the usage up to now, for a sandbox that is about to end.
pub async fn record_usage(fleet: &Fleet, sandbox: &Sandbox) {
    let Some((life, _, usage)) = read_usage(fleet, sandbox).await else { return };
    let reading = Reading::new(life.sandbox.as_str(), life.execution.as_str(), &usage);
    if let Err(error) = fleet.store.add_usage(&[reading]).await {
        tracing::warn!(error = isopod_wire::error_chain(&error), "could not add up resource usage");
    }
}

async fn read_usage(fleet: &Fleet, sandbox: &Sandbox) -> Option<(Incarnation, Limits, Usage)> {
    let view = sandbox.view();
    let life = view.life.as_ref()?;
    let asked = tokio::time::timeout(fleet.settings.node_timeout, fleet.node.usage(&life.incarnation)).await;
    Some((life.incarnation.clone(), view.row.limits, asked.ok()?.ok()?))
}

/// The average number of CPUs used since the previous sample.
fn cpu_share(before: Option<&(Instant, u64)>, usage: &Usage, at: Instant) -> f64 {
    let Some((then, used)) = before else { return 0.0 };
    let wall = at.duration_since(*then).as_secs_f64();
    let cpu = Duration::from_micros(usage.cpu_micros.saturating_sub(*used)).as_secs_f64();
    if wall > 0.0 { cpu / wall } else { 0.0 }
}

fn sample_of(limits: &Limits, usage: &Usage, cpus_used: f64) -> Sample {
    let cpu_count = limits.whole_cpus();
    let percent = 100.0 * cpus_used / f64::from(cpu_count);
    let number = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
    Sample {
        at: Timestamp::now(),
        cpu_count: i64::from(cpu_count),
        cpu_percent: (percent * 100.0).round() / 100.0,
        mem_used: number(usage.memory),
        mem_total: number(limits.memory.0),
        mem_cache: number(usage.cache),
        disk_used: number(usage.disk),
        disk_total: number(usage.disk_total),
    }
}

async fn prune(fleet: &Fleet, retention: &Retention) {
    if let Err(error) = fleet.store.prune(Timestamp::now(), retention).await {
        tracing::warn!(error = isopod_wire::error_chain(&error), "could not remove old records");
    }
}
