//! Measures many idle sandboxes at once: the time to create and remove them, the memory of each, and file watches in
//! some.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use anyhow::Context;
use isopod_client::guest::{Guest, Watch, WatchDir};
use isopod_node::{Node, PoolSize};
use isopod_testkit::spec;
use isopod_wire::node::{Incarnation, NodeApi};

use crate::machine::meminfo;
use crate::report::{Bound, Report, Table};
use crate::scale::Scale;
use crate::stage::Stage;

const MAX_CONCURRENT: usize = 4;

pub(crate) async fn measure(binary: &Path, scale: &Scale, report: &mut Report) -> anyhow::Result<()> {
    let stage = Stage::open(binary, PoolSize::NONE).await;
    let free = meminfo("MemAvailable:");
    let start = Instant::now();
    let all = make(&stage, scale.crowd).await?;
    let making = start.elapsed();
    let pss = proportional_memory(&stage, &all)?;
    let used = free.saturating_sub(meminfo("MemAvailable:")) / all.len() as u64;
    let guests: Vec<Guest> = all.iter().take(scale.watched).map(|one| stage.guest(one)).collect();
    let watched = watch(&guests).await;
    let start = Instant::now();
    let stage = remove(stage, all).await?;
    let removing = start.elapsed();
    stage.close().await?;

    let mut table = Table::new(&format!("{} idle sandboxes at once", scale.crowd), &["measure", "value", "target"]);
    table.row(&["PSS of the first process, mean", &mib(pss), &Bound::AtMost(3.0).verdict(pss as f64 / MIB)]);
    table.row(&["memory of the host per sandbox, kernel included", &mib(used), ""]);
    table.row(&["made in", &format!("{:.1} s ({MAX_CONCURRENT} at a time, no pool)", making.as_secs_f64()), ""]);
    table.row(&["removed in", &format!("{:.1} s", removing.as_secs_f64()), ""]);
    let working = watched.as_ref().copied().unwrap_or(0);
    let verdict = Bound::AtLeast(scale.watched as f64).verdict(working as f64);
    table.row(&["file watches that told of a new file", &working.to_string(), &verdict]);
    if let Err(error) = watched {
        table.note(&format!("Watches ended with: {error:#}"));
    }
    report.add(&table);
    Ok(())
}

const MIB: f64 = (1 << 20) as f64;

fn mib(bytes: u64) -> String {
    format!("{:.2} MiB", bytes as f64 / MIB)
}

async fn make(stage: &Stage, count: usize) -> anyhow::Result<Vec<Incarnation>> {
    let mut all = Vec::with_capacity(count);
    while all.len() < count {
        let batch = (0..MAX_CONCURRENT.min(count - all.len())).map(|_| stage.node.create(spec()));
        for made in futures::future::join_all(batch).await {
            all.push(made.with_context(|| format!("after {} sandboxes", all.len()))?);
        }
    }
    Ok(all)
}

/// Shared pages count proportionally. The guest's program is one file for all of them.
fn proportional_memory(stage: &Stage, all: &[Incarnation]) -> anyhow::Result<u64> {
    let mut sum = 0;
    for incarnation in all {
        let pid = stage.node.init_pid(incarnation).context("it has a first process")?;
        let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))?;
        let line = text.lines().find_map(|line| line.strip_prefix("Pss:")).context("no Pss")?;
        sum += line.trim().trim_end_matches(" kB").parse::<u64>()? * 1024;
    }
    Ok(sum / all.len().max(1) as u64)
}

/// Watches a directory in each at the same time, then creates a file in each and counts the watches that reported it.
async fn watch(guests: &[Guest]) -> anyhow::Result<usize> {
    let mut watches: Vec<(&Guest, Watch)> = Vec::new();
    for guest in guests {
        let watch = guest.watch_dir(WatchDir::new("/home/user")).await;
        watches.push((guest, watch.with_context(|| format!("after {} watches", watches.len()))?));
    }
    let mut working = 0;
    for (guest, watch) in &mut watches {
        guest.write_file("/home/user/seen", "x").await?;
        if watch.next().await?.is_some_and(|event| event.name == "seen") {
            working += 1;
        }
    }
    Ok(working)
}

async fn remove(stage: Stage, all: Vec<Incarnation>) -> anyhow::Result<Stage> {
    let node: &Node = &stage.node;
    let all = Arc::new(tokio::sync::Mutex::new(all));
    let worker = || async {
        loop {
            let Some(next) = all.lock().await.pop() else { return anyhow::Ok(()) };
            node.kill(&next).await?;
        }
    };
    futures::future::try_join_all((0..MAX_CONCURRENT).map(|_| worker())).await?;
    Ok(stage)
}
