//! `isopod run-workflow`: starts a workflow on a server and follows it to its end. Ends with 0 when it completed, with 1
//! when it failed.

mod layout;
mod plain;
mod printed;
mod tree;

use std::io::{IsTerminal as _, Read as _};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use isopod_client::sandbox::RunEvent;
use isopod_client::{ApiError, Client};
use serde_json::Value;

use super::remote::{client, explain};
use super::runs::fetch_artifacts;
use crate::args::RunWorkflowArgs;

/// Shows a run as it goes.
trait Watcher {
    fn begin(&mut self, run: &str, state: &Value);
    fn event(&mut self, event: &RunEvent);
    fn end(&mut self, state: &Value);
}

/// A server that restarts is back after a moment, and so is the run.
const RECONNECT_AFTER: Duration = Duration::from_millis(500);
const RECONNECTS: u32 = 60;

pub(super) async fn run(args: RunWorkflowArgs) -> anyhow::Result<ExitCode> {
    let client = client(&args.server)?;
    let text = read(&args.file)?;
    let run = client.start_run(&text).await.map_err(explain_workflow)?;
    if args.detach {
        say!("{run}");
        return Ok(ExitCode::SUCCESS);
    }
    // Who sends the output elsewhere wants a record there, not a picture here.
    let is_watched = std::io::stderr().is_terminal() && std::io::stdout().is_terminal() && can_draw();
    let mut watcher: Box<dyn Watcher> = match (args.json, is_watched) {
        (true, _) => Box::new(plain::Json),
        (false, true) => Box::new(tree::Tree::new()),
        (false, false) => Box::new(plain::Plain),
    };
    let state = client.run_state(&run).await.map_err(explain)?;
    watcher.begin(&run, &state);
    tokio::select! {
        followed = follow(&client, &run, args.approve_all, watcher.as_mut()) => followed?,
        _ = tokio::signal::ctrl_c() => {
            // It may have ended at the same moment.
            let _ = client.stop_run(&run).await;
        }
    }
    let state = client.run_state(&run).await.map_err(explain)?;
    watcher.end(&state);
    if let Some(directory) = &args.artifacts {
        let count = fetch_artifacts(&client, &run, directory).await?;
        say_error!("isopod: {count} files in {}", directory.display());
    }
    Ok(if state["status"] == "completed" { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn read(file: &Path) -> anyhow::Result<String> {
    if file == Path::new("-") {
        let mut text = String::new();
        std::io::stdin().read_to_string(&mut text).context("could not read the workflow from standard input")?;
        return Ok(text);
    }
    std::fs::read_to_string(file).with_context(|| format!("could not read {}", file.display()))
}

/// Shows every event once, also across restarts of the server.
async fn follow(client: &Client, run: &str, approve_all: bool, watcher: &mut dyn Watcher) -> anyhow::Result<()> {
    let (mut after, mut failures) = (0, 0);
    loop {
        match follow_once(client, run, approve_all, &mut after, watcher).await {
            Ok(true) => return Ok(()),
            Ok(false) => failures = 0,
            Err(ApiError::Transport(_) | ApiError::Unavailable { .. }) if failures < RECONNECTS => failures += 1,
            Err(error) => return Err(explain(error)),
        }
        tokio::time::sleep(RECONNECT_AFTER).await;
    }
}

/// True when the run has ended.
async fn follow_once(
    client: &Client,
    run: &str,
    approve_all: bool,
    after: &mut i64,
    watcher: &mut dyn Watcher,
) -> Result<bool, ApiError> {
    let mut events = client.run_events(run, *after).await?;
    while let Some(event) = events.next().await? {
        *after = event.id;
        watcher.event(&event);
        if event.event_type == "RunEnded" {
            return Ok(true);
        }
        if approve_all && event.event_type == "SystemIntervention" && event.payload["action"] == "pause" {
            match client.resume_run(run).await {
                // Another one of the same moment was approved along with it.
                Ok(()) | Err(ApiError::Server { code: 400, .. } | ApiError::Conflict { .. }) => {}
                Err(error) => return Err(error),
            }
        }
    }
    Ok(false)
}

fn explain_workflow(error: ApiError) -> anyhow::Error {
    match error {
        ApiError::Server { code: 400, message, .. } => {
            crate::failure::Hint::new(message, "docs/workflows.md says what a workflow can be")
        }
        other => explain(other),
    }
}

/// Whether the terminal is known to have a cursor that moves. Nothing is drawn on others.
fn can_draw() -> bool {
    std::env::var("TERM").is_ok_and(|name| name != "dumb")
}
