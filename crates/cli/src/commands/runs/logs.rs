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
            false => lines(&event).iter().for_each(|line| say!("{line}")),
        }
        if event.id >= last {
            break;
        }
    }
    Ok(())
}

/// An event for people: one line, or one for each line of a tool call's output.
pub(in crate::commands) fn lines(event: &RunEvent) -> Vec<String> {
    if event.payload["category"] != "TOOL_OUTPUT" {
        return vec![line(event, &words_of(&event.event_type, &event.payload))];
    }
    let stream = event.payload["metadata"].as_str().unwrap_or_default().to_lowercase();
    let text = event.payload["message"].as_str().unwrap_or_default();
    text.lines().map(|words| line(event, &format!("{} │ {}", printable(&stream), printable(words)))).collect()
}

fn line(event: &RunEvent, words: &str) -> String {
    let node = event.agent_id.as_deref().unwrap_or("-");
    format!("{} {:<18} {} {}", printable(&event.timestamp), printable(&event.event_type), printable(node), words)
        .trim_end()
        .to_owned()
}

fn words_of(kind: &str, payload: &Value) -> String {
    let text = |name: &str| payload[name].as_str().unwrap_or_default().to_owned();
    let words = match kind {
        "AgentFailed" => text("error"),
        "SystemIntervention" => format!("{}: {}", text("action"), text("reason")),
        "IntermediateLog" if payload["category"].is_null() => text("message"),
        "IntermediateLog" => format!("{}: {}", text("metadata"), text("message")),
        "RunEnded" => format!("{} ({}) {}", text("status"), text("reason"), text("error")),
        // An agent reports its calls afterwards: names, or objects with a name.
        "ToolCall" if payload["args"].is_null() => match &payload["tool"] {
            Value::String(name) => name.clone(),
            call => call.to_string(),
        },
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn shown(payload: Value) -> Vec<String> {
        let event = json!({ "id": 1, "event_type": "IntermediateLog", "agent_id": "a", "payload": payload, "timestamp": "now" });
        lines(&serde_json::from_value(event).unwrap())
    }

    #[test]
    fn output_has_a_line_for_each_of_its_lines_and_other_events_have_one() {
        let output = json!({ "category": "TOOL_OUTPUT", "metadata": "STDERR", "message": "one\n\u{1b}[2Jtwo\n" });
        let lines = shown(output);
        assert_eq!(lines[0], "now IntermediateLog    a stderr │ one");
        assert!(lines.len() == 2 && lines[1].ends_with("two") && !lines[1].contains('\u{1b}'), "{lines:?}");
        let result = json!({ "category": "TOOL_RESULT", "metadata": "IO_OK", "message": "one\ntwo" });
        assert_eq!(shown(result), ["now IntermediateLog    a IO_OK: one | two"]);
        assert_eq!(shown(json!({ "message": "started again" })), ["now IntermediateLog    a started again"]);
    }

    #[test]
    fn calls_that_an_agent_reports_are_shown() {
        let words = |payload| words_of("ToolCall", &payload);
        assert_eq!(words(json!({ "tool": "run_command", "args": { "command": "ls" } })), r#"{"command":"ls"}"#);
        assert_eq!(words(json!({ "tool": "web_search" })), "web_search");
        assert_eq!(
            words(json!({ "tool": { "name": "web_search", "success": true } })),
            r#"{"name":"web_search","success":true}"#
        );
    }
}
