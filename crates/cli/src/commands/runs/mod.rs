//! `isopod runs`: the team's runs of workflows.

mod artifacts;
mod library;
mod logs;
mod promote;

use std::process::ExitCode;

use crate::say::print_json_pretty;
use isopod_client::Client;
use serde_json::Value;

pub(super) use artifacts::fetch as fetch_artifacts;
pub(super) use logs::lines as event_lines;

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
        RunsCommand::Promote { run, file, client: owner, common } => {
            promote::run(&client(&common.server)?, &run.run, &file, &owner.client, common.json).await?;
        }
        RunsCommand::Library { client: owner, common } => {
            library::run(&client(&common.server)?, &owner.client, common.json).await?;
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
    for line in unconfirmed(state) {
        say!("{line}");
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

/// A line for each agent service that has not cleaned up after an ended run.
fn unconfirmed(state: &Value) -> Vec<String> {
    if state["cleaned_up"].is_null() {
        return Vec::new();
    }
    let services = state["agent_services"].as_array().into_iter().flatten();
    let line = |service: &Value| {
        let url =
            if service["url"].is_null() { "the server's agent service".to_owned() } else { field(service, "url") };
        let error: String = field(service, "error").chars().take(200).collect();
        let (cleanup, attempts) = (field(service, "cleanup"), field(service, "attempts"));
        format!("{cleanup:<10}  {url}, attempts: {attempts}, last error: {error}")
    };
    services.filter(|service| service["cleanup"] != "done").map(line).collect()
}

/// A field for people.
pub(super) fn field(value: &Value, name: &str) -> String {
    match &value[name] {
        Value::Null => "-".to_owned(),
        Value::String(text) => printable(text),
        other => printable(&other.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn services_that_have_not_cleaned_up_are_shown_with_their_errors() {
        let services = json!([
            { "url": "http://a", "cleanup": "done", "attempts": 1, "error": null },
            { "url": "http://b", "cleanup": "cleanup_failed", "attempts": 9, "error": "the agent returned 500" },
            { "url": null, "cleanup": "pending", "attempts": 1, "error": "\u{1b}[2Jno" },
        ]);
        let lines = unconfirmed(&json!({ "cleaned_up": false, "agent_services": services }));
        assert_eq!(lines[0], "cleanup_failed  http://b, attempts: 9, last error: the agent returned 500");
        assert!(lines[1].starts_with("pending     the server's agent service, attempts: 1, last error: "));
        assert!(lines.len() == 2 && !lines[1].contains('\u{1b}'), "{lines:?}");
        let running = json!({ "cleaned_up": null, "agent_services": services });
        assert_eq!(unconfirmed(&running), Vec::<String>::new(), "a run that goes on has nothing to clean up");
    }
}
