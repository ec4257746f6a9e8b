//! Measures megabytes per second through the guest: command output in both codecs, file upload and download.

use std::path::Path;
use std::time::{Duration, Instant};

use bytes::Bytes;
use isopod_client::guest::{Codec, Event, Guest, StartProcess, Upload};
use isopod_node::PoolSize;
use isopod_testkit::spec;
use isopod_wire::node::NodeApi;

use crate::report::{Bound, Report, Table};
use crate::scale::Scale;
use crate::stage::Stage;

const FILE: &str = "/tmp/bench.bin";
const PIECE: usize = 256 << 10;

pub(crate) async fn measure(binary: &Path, scale: &Scale, report: &mut Report) -> anyhow::Result<()> {
    let stage = Stage::open(binary, PoolSize::NONE).await;
    let mut spec = spec();
    // Room for the file in /tmp, which is memory, and for the pipe of the command.
    spec.limits.memory = isopod_wire::Bytes::mib(2048);
    let incarnation = stage.node.create(spec).await?;
    let guest = stage.guest(&incarnation);
    let bytes = scale.stream_mib << 20;
    let mut best = [Duration::MAX; 4];
    for _ in 0..scale.streams {
        let runs = [
            output(&guest, Codec::Json, bytes).await?,
            output(&guest, Codec::Binary, bytes).await?,
            upload(&guest, bytes).await?,
            download(&guest, bytes).await?,
        ];
        best.iter_mut().zip(runs).for_each(|(best, run)| *best = run.min(*best));
    }
    stage.node.kill(&incarnation).await?;
    stage.close().await?;

    let columns = ["stream", "MB/s (best of the runs)", "target"];
    let mut table = Table::new(&format!("Throughput, {} × {} MiB each", scale.streams, scale.stream_mib), &columns);
    let names = ["command output, JSON", "command output, binary", "file upload", "file download"];
    for ((name, taken), bound) in names.into_iter().zip(best).zip([200.0, 500.0, 500.0, 500.0]) {
        let rate = bytes as f64 / 1e6 / taken.as_secs_f64();
        table.row(&[name, &format!("{rate:.0}"), &Bound::AtLeast(bound).verdict(rate.round())]);
    }
    report.add(&table);
    Ok(())
}

async fn output(guest: &Guest, codec: Codec, bytes: usize) -> anyhow::Result<Duration> {
    let guest = guest.clone().with_codec(codec);
    let start = Instant::now();
    let mut process =
        guest.start(StartProcess::new("/usr/bin/head").args(["-c", &bytes.to_string(), "/dev/zero"])).await?;
    let mut seen = 0;
    loop {
        match process.next().await? {
            Some(Event::Stdout(piece)) => seen += piece.len(),
            Some(Event::End(_)) | None => break,
            Some(_) => {}
        }
    }
    anyhow::ensure!(seen == bytes, "{seen} of {bytes} bytes came out");
    Ok(start.elapsed())
}

async fn upload(guest: &Guest, bytes: usize) -> anyhow::Result<Duration> {
    let piece = Bytes::from(vec![7; PIECE]);
    let pieces = futures::stream::iter((0..bytes / PIECE).map(move |_| Ok(piece.clone())));
    let start = Instant::now();
    guest.write_file(FILE, Upload::stream(pieces)).await?;
    Ok(start.elapsed())
}

async fn download(guest: &Guest, bytes: usize) -> anyhow::Result<Duration> {
    let start = Instant::now();
    let mut file = guest.read_file(FILE).await?;
    let mut seen = 0;
    while let Some(piece) = file.next().await? {
        seen += piece.len();
    }
    anyhow::ensure!(seen == bytes, "{seen} of {bytes} bytes came back");
    Ok(start.elapsed())
}
