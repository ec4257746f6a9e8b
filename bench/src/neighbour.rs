//! Measures how a neighbour that uses everything it can affects a sandbox.

use std::path::Path;
use std::time::Duration;

use isopod_client::guest::{Event, Guest, StartProcess};
use isopod_node::PoolSize;
use isopod_testkit::spec;
use isopod_wire::node::{NodeApi, SandboxSpec};
use isopod_wire::{Bytes, Limits};

use crate::command::echo;
use crate::report::{Report, Table};
use crate::samples::{Samples, millis, times};
use crate::scale::Scale;
use crate::stage::Stage;

/// What the neighbour does until it is killed. Each prints a line when it has started.
const ATTACKS: [(&str, &str); 4] = [
    ("one busy loop", "echo begun; while :; do :; done"),
    ("eight busy loops", "for i in 1 2 3 4 5 6 7 8; do while :; do :; done & done; echo begun; wait"),
    ("a fork bomb", "bomb() { bomb | bomb & }; bomb 2>/dev/null; echo begun; while :; do :; done"),
    ("memory up to the limit, again and again", "echo begun; while :; do head -c 1G /dev/zero | tail >/dev/null; done"),
];

pub(crate) async fn measure(binary: &Path, scale: &Scale, report: &mut Report) -> anyhow::Result<()> {
    let columns = ["beside it", "n", "p50 ms", "p99 ms", "p50 to alone", "p99 to alone"];
    let mut table = Table::new("`echo` in a sandbox while its neighbour misbehaves", &columns);
    let stage = Stage::open(binary, PoolSize::NONE).await;
    let incarnation = stage.node.create(spec()).await?;
    let guest = stage.guest(&incarnation);
    let alone = samples(&guest, scale.creates).await?;
    add_row(&mut table, "nothing", &alone, &alone);
    for (name, script) in ATTACKS {
        // One CPU of the host for each, so that the host is not simply too small.
        let limits = Limits { cpu_millis: 1000, memory: Bytes::mib(256), pids: 512, ..Limits::default() };
        let attacker = stage.node.create(SandboxSpec { limits, ..spec() }).await?;
        let attack = begin(&stage.guest(&attacker), script).await?;
        let beside = samples(&guest, scale.creates).await?;
        add_row(&mut table, name, &beside, &alone);
        stage.node.kill(&attacker).await?;
        drop(attack);
    }
    table.note("The neighbour may use one CPU, 256 MiB and 512 processes. No target: it depends on what else runs.");
    report.add(&table);
    stage.close().await
}

/// Starts the attack and waits until it runs.
async fn begin(guest: &Guest, script: &str) -> anyhow::Result<isopod_client::guest::Process> {
    let mut process = guest.start(StartProcess::shell(script)).await?;
    while let Some(event) = process.next().await? {
        if matches!(event, Event::Stdout(_)) {
            return Ok(process);
        }
    }
    anyhow::bail!("the neighbour ended before it began")
}

async fn samples(guest: &Guest, count: usize) -> anyhow::Result<Samples> {
    let mut samples = Samples::default();
    for _ in 0..count {
        samples.push(echo(guest).await?);
        // Not back to back, so that the neighbour gets its turns.
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    Ok(samples)
}

fn add_row(table: &mut Table, name: &str, samples: &Samples, alone: &Samples) {
    let (median, worst) = (samples.median(), samples.percentile(99));
    table.row(&[
        name.to_owned(),
        samples.len().to_string(),
        millis(median),
        millis(worst),
        times(median, alone.median()),
        times(worst, alone.percentile(99)),
    ]);
}
