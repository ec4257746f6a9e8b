//! `isopod exec`: a command in a sandbox that exists.

use std::process::ExitCode;
use std::time::Instant;

use isopod_client::guest::StartProcess;

use super::environment::environment;
use super::follow::{self, Report, terminal_size};
use super::keep_alive::KeepAlive;
use super::remote::{client, explain};
use crate::args::ExecArgs;

pub(super) async fn run(args: ExecArgs) -> anyhow::Result<ExitCode> {
    let mut start = StartProcess::new(&args.command[0]).args(&args.command[1..]);
    start.envs = environment(&args.env)?;
    start.cwd = args.workdir;
    start.user = args.user;
    start.stdin = !args.tty;
    start.pty = args.tty.then(terminal_size);

    let client = client(&args.server)?;
    let started = Instant::now();
    let sandbox = client.connect(&args.sandbox, None).await.map_err(explain)?;
    let _kept = args.tty.then(|| KeepAlive::start(client, args.sandbox.clone()));
    let report = Report::new(args.json, args.sandbox, started);
    follow::follow(sandbox.guest(), start, args.timeout, args.tty, report).await
}
