//! The one host binary: reads what people typed, puts the parts together, and says in words how it went.

#![expect(clippy::print_stderr, reason = "a command line program talks to people")]

#[macro_use]
mod say;

mod args;
mod commands;
mod env_names;
mod failure;
mod privilege;

use std::process::ExitCode;

use clap::Parser;

use args::{Args, Command};

fn main() -> ExitCode {
    let args = Args::parse();
    // The spawner must stay without threads, so nothing is started before it is told apart.
    if let Command::Spawner(spawner) = &args.command {
        return commands::spawner::run(spawner);
    }
    init_logging(&args);
    match commands::dispatch(args) {
        Ok(code) => code,
        Err(error) => failure::report(&error),
    }
}

fn init_logging(args: &Args) {
    let default = if matches!(args.command, Command::Serve(_)) { "info" } else { "error" };
    let filter = tracing_subscriber::EnvFilter::try_from_env(env_names::LOG)
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new(default));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_target(false).init();
}
