//! Measures the time of a command: the first one of a new sandbox, and later ones.

use std::path::Path;
use std::time::{Duration, Instant};

use isopod_client::guest::{Codec, Guest, StartProcess};
use isopod_node::PoolSize;
use isopod_testkit::spec;
use isopod_wire::node::NodeApi;

use crate::report::{Bound, Report, Table};
use crate::samples::{Samples, millis};
use crate::scale::Scale;
use crate::stage::Stage;

pub(crate) async fn measure(binary: &Path, scale: &Scale, report: &mut Report) -> anyhow::Result<()> {
    let pool = PoolSize { ready: 4, prepared: 2 };
    let stage = Stage::open(binary, pool).await;
    let (mut first, mut both) = (Samples::default(), Samples::default());
    for _ in 0..scale.creates {
        stage.node.wait_for_pool(pool).await;
        let spec = spec();
        let start = Instant::now();
        let incarnation = stage.node.create(spec).await?;
        first.push(echo(&stage.guest(&incarnation)).await?);
        both.push(start.elapsed());
        stage.node.kill(&incarnation).await?;
    }
    let guest = stage.guest(&stage.node.create(spec()).await?);
    let mut warm = Samples::default();
    for _ in 0..scale.creates {
        warm.push(echo(&guest).await?);
    }
    stage.close().await?;
    report.add(&table(&[
        ("first `echo` after ready", first, Some(3.0)),
        ("create from the ready pool + first `echo`", both, None),
        ("`echo` in a warm sandbox", warm, None),
    ]));
    Ok(())
}

/// Runs `/bin/echo` directly, until its end is reported.
pub(crate) async fn echo(guest: &Guest) -> anyhow::Result<Duration> {
    let guest = guest.clone().with_codec(Codec::Binary);
    let start = Instant::now();
    let output = guest.run(StartProcess::new("/bin/echo").arg("hi")).await?;
    let taken = start.elapsed();
    anyhow::ensure!(output.stdout == b"hi\n", "echo printed {:?}", output.text());
    Ok(taken)
}

fn table(rows: &[(&str, Samples, Option<f64>)]) -> Table {
    let columns = ["command through the guest's socket", "n", "p10 ms", "p50 ms", "p90 ms", "p99 ms", "target p50"];
    let mut table = Table::new("Commands", &columns);
    for (name, samples, bound) in rows {
        let median = samples.median();
        let verdict = bound.map(|bound| Bound::AtMost(bound).verdict(median.as_secs_f64() * 1e3));
        table.row(&[
            (*name).to_owned(),
            samples.len().to_string(),
            millis(samples.percentile(10)),
            millis(median),
            millis(samples.percentile(90)),
            millis(samples.percentile(99)),
            verdict.unwrap_or_default(),
        ]);
    }
    table
}
