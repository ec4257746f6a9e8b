//! `isopod help-man`: man pages for every command, generated from what clap knows.

use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;
use clap::CommandFactory;

use crate::args::Args;

pub(super) fn run(directory: &Path) -> anyhow::Result<ExitCode> {
    let pages = clap_mangen::generate_to(Args::command(), directory);
    pages.with_context(|| format!("could not write man pages to {}", directory.display()))?;
    Ok(ExitCode::SUCCESS)
}
