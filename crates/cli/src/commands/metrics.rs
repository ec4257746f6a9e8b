//! `isopod metrics`: what a sandbox uses, and used.

use std::process::ExitCode;
use std::time::Duration;

use isopod_client::sandbox::SandboxMetric;
use isopod_client::{ApiError, Client};

use super::remote::{client, explain};
use super::show::{mebibytes, moment, print_table};
use crate::args::MetricsArgs;
use crate::say::print_json_pretty;

/// As often as servers take a sample.
const LOOK_EVERY: Duration = Duration::from_secs(5);

pub(super) async fn run(args: MetricsArgs) -> anyhow::Result<ExitCode> {
    let client = client(&args.server)?;
    let samples = client.metrics(&args.sandbox, None, None).await.map_err(explain)?;
    if args.json {
        print_json_pretty(&samples);
        return Ok(ExitCode::SUCCESS);
    }
    let headings = ["TIME                ", "CPU    ", "OF", "MEMORY    ", "OF        ", "CACHE     ", "DISK"];
    print_table(&headings, &samples.iter().map(row).collect::<Vec<_>>());
    if args.follow {
        follow(&client, &args, &headings, samples.last()).await.map_err(explain)?;
    }
    Ok(ExitCode::SUCCESS)
}

async fn follow(
    client: &Client,
    args: &MetricsArgs,
    headings: &[&str],
    last: Option<&SandboxMetric>,
) -> Result<(), ApiError> {
    let mut shown = last.map(|sample| sample.timestamp);
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        let start = shown.map(|time| time.unix_timestamp());
        let samples = match client.metrics(&args.sandbox, start, None).await {
            Err(error) if error.is_not_found() => return Ok(()),
            samples => samples?,
        };
        for sample in samples.iter().filter(|sample| shown.is_none_or(|shown| sample.timestamp > shown)) {
            say!("{}", super::show::aligned(headings, &row(sample)));
        }
        shown = samples.last().map(|sample| sample.timestamp).max(shown);
        if client.info(&args.sandbox).await.is_err_and(|error| error.is_not_found()) {
            return Ok(());
        }
    }
}

fn row(sample: &SandboxMetric) -> Vec<String> {
    vec![
        moment(sample.timestamp),
        format!("{:.1} %", sample.cpu_used_pct),
        sample.cpu_count.to_string(),
        mebibytes(sample.mem_used),
        mebibytes(sample.mem_total),
        mebibytes(sample.mem_cache),
        mebibytes(sample.disk_used),
    ]
}
