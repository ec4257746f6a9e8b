//! Entry point: parses the command line, runs the command, and prints its error.

#![expect(clippy::print_stderr, reason = "a command line program talks to people")]

#[macro_use]
mod say;

mod args;
mod commands;
mod env_names;
mod failure;
mod host_packages;
mod logging;
mod printable;
mod privilege;
mod progress_bar;

use std::process::ExitCode;

use clap::Parser;

use args::{Args, Command};

fn main() -> ExitCode {
    if commands::docker::is_called(std::env::args_os().next()) {
        return commands::docker::run();
    }
    let args = Args::parse();
    // These must stay without threads, so nothing is started before they are told apart.
    match &args.command {
        Command::Spawner(spawner) => return commands::spawner::run(spawner),
        Command::EnvEnter(env) => return commands::env::enter::run(&env.command),
        Command::EnvExec(env) => return commands::env::exec::run(&env.command),
        _ => {}
    }
    match logging::init(&args).and_then(|traces| commands::dispatch(args, traces)) {
        Ok(code) => code,
        Err(error) => failure::report(&error),
    }
}
