//! Measures the time of a create: from nothing, from a prepared slot, from a ready one, and from a pool that was idle
//! for a while.

use std::path::Path;
use std::time::{Duration, Instant};

use isopod_node::PoolSize;
use isopod_testkit::spec;
use isopod_wire::node::NodeApi;

use crate::peers::{self, Peer};
use crate::report::{Bound, Report, Table};
use crate::samples::{Samples, millis, times};
use crate::scale::Scale;
use crate::stage::Stage;

/// The size of the pool while single creates are measured.
const SHELF: usize = 8;

/// Runs the rows of this file, alternating with the peers.
pub(crate) async fn measure(binary: &Path, scale: &Scale, report: &mut Report) -> anyhow::Result<()> {
    let (mut peers, missing) = peers::find();
    let mut rows = Vec::new();
    let kinds = [
        ("cold: from a prepared slot", PoolSize { ready: 0, prepared: SHELF }, Some(5.0)),
        ("pool miss: from nothing", PoolSize::NONE, None),
        ("from the ready pool", PoolSize { ready: SHELF, prepared: 2 }, Some(1.0)),
    ];
    for (name, pool, bound) in kinds {
        let stage = Stage::open(binary, pool).await;
        let mut samples = Samples::default();
        for _ in 0..scale.creates {
            samples.push(create_once(&stage, pool).await?);
            peers.iter_mut().try_for_each(Peer::measure)?;
        }
        stage.close().await?;
        rows.push((name, samples, bound));
    }
    let pool = PoolSize { ready: SHELF, prepared: 2 };
    rows.push(("from a ready pool that has rested", aged(binary, scale, pool).await?, Some(1.0)));
    report.add(&table(&rows, &peers, &missing));
    Ok(())
}

/// Measures one create with a full pool and nothing else running.
async fn create_once(stage: &Stage, pool: PoolSize) -> anyhow::Result<Duration> {
    stage.node.wait_for_pool(pool).await;
    let spec = spec();
    let start = Instant::now();
    let incarnation = stage.node.create(spec).await?;
    let taken = start.elapsed();
    stage.node.kill(&incarnation).await?;
    Ok(taken)
}

/// Waits for the whole time, then empties the pool. Repeats until there are enough samples.
async fn aged(binary: &Path, scale: &Scale, pool: PoolSize) -> anyhow::Result<Samples> {
    // One wait with a large pool gives the same samples as many waits with a small one.
    let pool = PoolSize { ready: scale.creates.min(200), ..pool };
    let stage = Stage::open(binary, pool).await;
    stage.node.wait_for_pool(pool).await;
    tokio::time::sleep(scale.age).await;
    let mut samples = Samples::default();
    for _ in 0..pool.ready {
        samples.push(create_once(&stage, pool).await?);
    }
    stage.close().await?;
    Ok(samples)
}

type Row = (&'static str, Samples, Option<f64>);

fn table(rows: &[Row], peers: &[Peer], missing: &[String]) -> Table {
    let columns = ["create", "n", "p10 ms", "p50 ms", "p90 ms", "p99 ms", "target p50", "bwrap ÷ ours"];
    let mut table = Table::new("Create: request → guest ready, all isolation and outbound network on", &columns);
    let bwrap = peers.iter().find(|peer| peer.name.starts_with("bwrap")).map(|peer| peer.samples.median());
    let cells = |name: &str, samples: &Samples, bound: Option<f64>| {
        let median = samples.median();
        let verdict = bound.map(|bound| Bound::AtMost(bound).verdict(median.as_secs_f64() * 1e3));
        [
            name.to_owned(),
            samples.len().to_string(),
            millis(samples.percentile(10)),
            millis(median),
            millis(samples.percentile(90)),
            millis(samples.percentile(99)),
            verdict.unwrap_or_default(),
            times(bwrap.unwrap_or_default(), median),
        ]
    };
    rows.iter().for_each(|(name, samples, bound)| table.row(&cells(name, samples, *bound)));
    peers.iter().for_each(|peer| table.row(&cells(&format!("peer: {} true", peer.name), &peer.samples, None)));
    missing.iter().for_each(|reason| table.note(&format!("- {reason}")));
    table
}
