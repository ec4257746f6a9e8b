//! `isopod completions`: a script that completes commands and options.

use std::process::ExitCode;

use clap::CommandFactory;

use crate::args::Args;

pub(super) fn run(shell: clap_complete::Shell) -> anyhow::Result<ExitCode> {
    clap_complete::generate(shell, &mut Args::command(), "isopod", &mut std::io::stdout());
    Ok(ExitCode::SUCCESS)
}
