//! `isopod runs logs`: what happened in a run.

use isopod_client::Client;
use isopod_client::sandbox::RunEvent;
use serde_json::Value;

use super::super::remote::explain;
use super::super::show::printable;
use crate::say::print_json;

pub(super) async fn print_logs(client: &Client, run: &str, follow: bool, json: bool) -> anyhow::Result<()> {
    // Without --follow only what has happened: the numbers of events say where that ends.
    let last = match follow {
        true => i64::MAX,
        false => client.run_state(run).await.map_err(explain)?["last_event_id"].as_i64().unwrap_or(i64::MAX),
    };
    let mut events = client.run_events(run, 0).await.map_err(explain)?;
    while let Some(event) = events.next().await.map_err(explain)? {
        match json {
            true => print_json(&event),
            false => say!("{}", line(&event)),
        }
        if event.id >= last {
            break;
        }
    }
    Ok(())
}

/// An event for people.
pub(in crate::commands) fn line(event: &RunEvent) -> String {
    let node = event.agent_id.as_deref().unwrap_or("-");
    let words = words_of(&event.event_type, &event.payload);
    format!("{} {:<18} {} {}", printable(&event.timestamp), printable(&event.event_type), printable(node), words)
        .trim_end()
        .to_owned()
}

fn words_of(kind: &str, payload: &Value) -> String {
    let text = |name: &str| payload[name].as_str().unwrap_or_default().to_owned();
    let words = match kind {
        "AgentFailed" => text("error"),
        "SystemIntervention" => format!("{}: {}", text("action"), text("reason")),
        "IntermediateLog" => text("message"),
        "RunEnded" => format!("{} ({}) {}", text("status"), text("reason"), text("error")),
        "ToolCall" => payload["args"].to_string(),
        "AgentCompleted" => match &payload["output"]["result"] {
            Value::String(result) => result.clone(),
            _ => payload["output"].to_string(),
        },
        _ => String::new(),
    };
    // One event, one line.
    printable(&words.trim().replace('\n', " | ")).chars().take(500).collect()
}
