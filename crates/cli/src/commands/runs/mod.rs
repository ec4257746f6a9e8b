//! `isopod runs`: the team's runs of workflows.

mod artifacts;
mod logs;

use std::process::ExitCode;

use crate::say::print_json_pretty;
use isopod_client::Client;
use serde_json::Value;

pub(super) use artifacts::fetch as fetch_artifacts;
pub(super) use logs::line as event_line;

use super::remote::{client, explain};
use super::show::{print_table, printable};
use crate::args::{RunsArgs, RunsCommand};

pub(super) async fn run(args: RunsArgs) -> anyhow::Result<ExitCode> {
    match args.command {
        RunsCommand::Ls { status, limit, common } => {
            let runs = client(&common.server)?.list_runs(status.as_deref(), limit).await.map_err(explain)?;
            list(&runs, common.json)?;
        }
        RunsCommand::Show { run, common } => {
            let state = client(&common.server)?.run_state(&run.run).await.map_err(explain)?;
            show(&state, common.json)?;
        }
        RunsCommand::Logs { run, follow, common } => {
            logs::print_logs(&client(&common.server)?, &run.run, follow, common.json).await?;
        }
        RunsCommand::Stop { run, common } => {
            client(&common.server)?.stop_run(&run.run).await.map_err(explain)?;
            report(&client(&common.server)?, &run.run, common.json).await?;
        }
        RunsCommand::Approve { run, node, reject, common } => {
            let client = client(&common.server)?;
            client.approve_run(&run.run, node.as_deref(), !reject).await.map_err(explain)?;
            report(&client, &run.run, common.json).await?;
        }
        RunsCommand::Artifacts { run, output, common } => {
            artifacts::run(&client(&common.server)?, &run.run, output.as_deref(), common.json).await?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// What an order has led to.
async fn report(client: &Client, run: &str, json: bool) -> anyhow::Result<()> {
    if !json {
        say!("{run}");
        return Ok(());
    }
    let state = client.run_state(run).await.map_err(explain)?;
    print_json_pretty(&state);
    Ok(())
}

fn list(runs: &[Value], json: bool) -> anyhow::Result<()> {
    if json {
        print_json_pretty(runs);
        return Ok(());
    }
    let row = |run: &Value| {
        vec![
            field(run, "run_id"),
            field(run, "name"),
            field(run, "status"),
            field(run, "reason"),
            field(run, "start_time"),
            field(run, "end_time"),
        ]
    };
    let rows: Vec<_> = runs.iter().map(row).collect();
    print_table(&["ID", "WORKFLOW", "STATUS", "REASON", "STARTED", "ENDED"], &rows);
    Ok(())
}

fn show(state: &Value, json: bool) -> anyhow::Result<()> {
    if json {
        print_json_pretty(state);
        return Ok(());
    }
    for (label, name) in [
        ("run", "run_id"),
        ("workflow", "name"),
        ("status", "status"),
        ("reason", "reason"),
        ("error", "error"),
        ("paused", "paused"),
        ("tokens", "total_tokens_used"),
        ("started", "start_time"),
        ("ended", "end_time"),
        ("cleaned up", "cleaned_up"),
    ] {
        if !state[name].is_null() {
            say!("{label:<10}  {}", field(state, name));
        }
    }
    say!("");
    let row = |node: &Value| {
        let depends_on = node["depends_on"].as_array().into_iter().flatten().filter_map(Value::as_str);
        vec![
            field(node, "id"),
            field(node, "status"),
            field(node, "attempts"),
            printable(&depends_on.collect::<Vec<_>>().join(" ")),
            field(node, "error").chars().take(80).collect(),
        ]
    };
    let rows: Vec<_> = state["nodes"].as_array().into_iter().flatten().map(row).collect();
    print_table(&["NODE", "STATUS", "ATTEMPTS", "AFTER", "ERROR"], &rows);
    Ok(())
}

/// A field for people.
pub(super) fn field(value: &Value, name: &str) -> String {
    match &value[name] {
        Value::Null => "-".to_owned(),
        Value::String(text) => printable(text),
        other => printable(&other.to_string()),
    }
}
