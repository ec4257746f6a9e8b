//! `isopod-bench`: measures sandboxes through the node, and the server through the official Python SDK, beside peers
//! and a lower bound, and writes Markdown tables.

#![expect(clippy::print_stdout, reason = "its output is for people")]

mod build;
mod churn;
mod command;
mod create;
mod crowd;
mod interpreter;
mod machine;
mod memory;
mod neighbour;
mod peers;
mod pull;
mod report;
mod runc_memory;
mod runs;
mod samples;
mod scale;
mod sdk;
mod server;
mod service;
mod stage;
mod template;
mod throughput;
mod workflows;

use std::path::PathBuf;

use anyhow::Context;
use clap::Parser;

use report::Report;
use scale::Scale;

#[derive(Debug, Parser)]
struct Args {
    /// The release build of `isopod`.
    #[arg(long, value_name = "PATH")]
    isopod: PathBuf,
    /// Smaller workloads, to see that everything works.
    #[arg(long)]
    quick: bool,
    /// Only this part; may be given more than once.
    #[arg(long, value_name = "PART")]
    only: Vec<Part>,
    /// Where the report goes; without it, it is only printed.
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Part {
    Create,
    Command,
    Churn,
    Neighbour,
    Crowd,
    Throughput,
    Sdk,
    Interpreter,
    Build,
    Template,
    Runs,
    Service,
    Memory,
}

const PARTS: [Part; 13] = [
    Part::Create,
    Part::Command,
    Part::Churn,
    Part::Neighbour,
    Part::Crowd,
    Part::Throughput,
    Part::Sdk,
    Part::Interpreter,
    Part::Build,
    Part::Template,
    Part::Runs,
    Part::Service,
    Part::Memory,
];

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let binary = args.isopod.canonicalize().context("the isopod program")?;
    let scale = if args.quick { Scale::QUICK } else { Scale::FULL };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let mut report = Report::default();
    let kind = if args.quick { "quick: too few samples to judge by" } else { "full" };
    report.paragraph(&format!("# Benchmark results ({kind})\n\n{}", machine::facts()));
    for part in PARTS.into_iter().filter(|part| args.only.is_empty() || args.only.contains(part)) {
        runtime.block_on(async {
            match part {
                Part::Create => create::measure(&binary, &scale, &mut report).await,
                Part::Command => command::measure(&binary, &scale, &mut report).await,
                Part::Churn => churn::measure(&binary, &scale, &mut report).await,
                Part::Neighbour => neighbour::measure(&binary, &scale, &mut report).await,
                Part::Crowd => crowd::measure(&binary, &scale, &mut report).await,
                Part::Throughput => throughput::measure(&binary, &scale, &mut report).await,
                Part::Sdk => sdk::measure(&binary, &scale, &mut report).await,
                Part::Interpreter => interpreter::measure(&binary, &scale, &mut report).await,
                Part::Build => match build::measure(&binary, &scale, &mut report).await {
                    Ok(()) => pull::measure(&binary, &scale, &mut report).await,
                    failed => failed,
                },
                Part::Template => template::measure(&binary, &scale, &mut report),
                Part::Runs => match runs::measure(&binary, &scale, &mut report).await {
                    Ok(()) => workflows::measure(&binary, &scale, &mut report).await,
                    failed => failed,
                },
                Part::Service => service::measure(&binary, &scale, &mut report).await,
                Part::Memory => memory::measure(&binary, &scale, &mut report).await,
            }
            .with_context(|| format!("part {part:?}"))
        })?;
    }
    report.paragraph(&format!("Load at the end: {}", machine::load()));
    match args.output {
        Some(path) => std::fs::write(&path, report.text()).with_context(|| path.display().to_string()),
        None => Ok(()),
    }
}
