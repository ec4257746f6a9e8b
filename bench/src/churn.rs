//! Measures how many sandboxes per second can be created and removed, over a while.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use isopod_node::PoolSize;
use isopod_testkit::spec;
use isopod_wire::node::NodeApi;

use crate::machine::cpu_time;
use crate::report::{Bound, Report, Table};
use crate::scale::Scale;
use crate::stage::Stage;

/// Numbers of concurrent callers.
const CALLERS: [usize; 3] = [2, 4, 8];

pub(crate) async fn measure(binary: &Path, scale: &Scale, report: &mut Report) -> anyhow::Result<()> {
    let columns = ["callers at once", "seconds", "sandboxes", "per second", "CPU ms per sandbox", "target"];
    let mut table = Table::new("Creates a second, sustained, with teardown", &columns);
    for callers in CALLERS {
        let stage = Stage::open(binary, PoolSize { ready: 8, prepared: 8 }).await;
        let stage = Arc::new(stage);
        let (made, taken, cpu) = churn(&stage, callers, scale.churn).await?;
        if let Some(stage) = Arc::into_inner(stage) {
            stage.close().await?;
        }
        let rate = made as f64 / taken.as_secs_f64();
        table.row(&[
            callers.to_string(),
            format!("{:.1}", taken.as_secs_f64()),
            made.to_string(),
            format!("{rate:.0}"),
            format!("{:.2}", cpu.as_secs_f64() * 1e3 / made.max(1) as f64),
            Bound::AtLeast(300.0).verdict(rate.round()),
        ]);
    }
    table.note("CPU is that of the whole machine over the time, other programs included.");
    report.add(&table);
    Ok(())
}

async fn churn(stage: &Arc<Stage>, callers: usize, length: Duration) -> anyhow::Result<(u64, Duration, Duration)> {
    let made = Arc::new(AtomicU64::new(0));
    let (start, cpu) = (Instant::now(), cpu_time());
    let deadline = start + length;
    let tasks: Vec<_> =
        (0..callers).map(|_| tokio::spawn(call(Arc::clone(stage), Arc::clone(&made), deadline))).collect();
    for task in tasks {
        task.await??;
    }
    Ok((made.load(Ordering::Relaxed), start.elapsed(), cpu_time() - cpu))
}

async fn call(stage: Arc<Stage>, made: Arc<AtomicU64>, deadline: Instant) -> anyhow::Result<()> {
    while Instant::now() < deadline {
        let incarnation = stage.node.create(spec()).await?;
        stage.node.kill(&incarnation).await?;
        made.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}
