//! `isopod connect`: a shell in a sandbox, as long as the person stays.

use std::process::ExitCode;
use std::time::Instant;

use isopod_client::guest::StartProcess;
use isopod_client::{Client, Sandbox};

use super::follow::{self, Report, is_terminal, terminal_size};
use super::keep_alive::KeepAlive;
use super::remote::{client, explain};
use crate::args::ConnectArgs;
use crate::failure::Hint;

pub(super) async fn run(args: ConnectArgs) -> anyhow::Result<ExitCode> {
    require_terminal("isopod exec runs a command without one")?;
    let client = client(&args.server)?;
    let sandbox = client.connect(&args.sandbox, None).await.map_err(explain)?;
    shell(client, &sandbox, args.user).await
}

/// A shell needs somebody who types.
pub(super) fn require_terminal(instead: &str) -> anyhow::Result<()> {
    if is_terminal() { Ok(()) } else { Err(Hint::new("standard input is no terminal", instead)) }
}

/// Runs a shell to its end. The sandbox does not run out of time meanwhile.
pub(super) async fn shell(client: Client, sandbox: &Sandbox, user: Option<String>) -> anyhow::Result<ExitCode> {
    let mut start = StartProcess::new("/bin/bash").arg("-l").pty(terminal_size());
    start.user = user;
    if let Ok(kind) = std::env::var("TERM") {
        start = start.env("TERM", kind);
    }
    let _kept = KeepAlive::start(client, sandbox.id().clone());
    let report = Report::new(false, sandbox.id().clone(), Instant::now());
    follow::follow(sandbox.guest(), start, None, true, report).await
}
