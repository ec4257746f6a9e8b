//! One file per verb.

mod completions;
mod df;
mod doctor;
mod node_config;
mod prune;
mod run;
mod serve;
pub(crate) mod spawner;
mod sweep;
mod uninstall;

use std::process::ExitCode;

use anyhow::Context;

use crate::args::{Args, Command};
use crate::privilege::require_root;

/// Does what was typed.
pub(crate) fn dispatch(args: Args) -> anyhow::Result<ExitCode> {
    let state_dir = args.state_dir;
    match args.command {
        Command::Completions { shell } => completions::run(shell),
        Command::Doctor(doctor) => doctor::run(&state_dir, &doctor),
        Command::Spawner(_) => Ok(ExitCode::FAILURE),
        command => {
            require_root()?;
            match command {
                Command::Run(run) => block_on(run::run(&state_dir, run)),
                Command::Serve(serve) => block_on(serve::run(&state_dir, serve)),
                Command::Df(df) => df::run(&state_dir, &df),
                Command::Prune(prune) => prune::run(&state_dir, &prune),
                Command::Uninstall(uninstall) => uninstall::run(&state_dir, &uninstall),
                _ => sweep::run(&state_dir),
            }
        }
    }
}

fn block_on(work: impl Future<Output = anyhow::Result<ExitCode>>) -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().context("could not start")?;
    let result = runtime.block_on(work);
    // A thread that waits for a terminal's input would otherwise keep the process from ending.
    runtime.shutdown_background();
    result
}
