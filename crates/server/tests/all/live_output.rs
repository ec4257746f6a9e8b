//! What tool calls of a run write is seen while they run: in the run's events and on the Redis channel of live logs.

use crate::support;

use futures::StreamExt as _;
use http::Method;
use http_body_util::BodyExt as _;
use serde_json::{Value, json};
use support::hostile::ENDLESS;
use support::redis::RedisServer;
use support::server::until;
use support::{Client, Server};

async fn start(server: &Server, flow: Value) -> String {
    let started = server.client.post("/runtime/start", flow).await;
    assert_eq!(started.status, 200, "{started:?}");
    started.json["run_id"].as_str().unwrap().to_owned()
}

/// The log lines of a run so far: node, category, metadata and message. The run must have ended.
async fn logs(client: &Client, run: &str) -> Vec<[String; 4]> {
    let text = client.get(&format!("/runtime/{run}/events")).await.text;
    let events = text.lines().filter_map(|line| line.strip_prefix("data: "));
    let events = events.map(|line| serde_json::from_str::<Value>(line).unwrap());
    events.filter(|event| event["event_type"] == "IntermediateLog").map(|event| log(&event)).collect()
}

fn log(event: &Value) -> [String; 4] {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let payload = &event["payload"];
    [text(&event["agent_id"]), text(&payload["category"]), text(&payload["metadata"]), text(&payload["message"])]
}

fn line(node: &str, category: &str, metadata: &str, message: &str) -> [String; 4] {
    [node, category, metadata, message].map(str::to_owned)
}

async fn wait_for(server: &Server, run: &str, status: &str) {
    until(status, || async {
        server.client.get(&format!("/runtime/state?run_id={run}")).await.json["status"] == status
    })
    .await;
}

/// The code never ends and never stops writing.
#[tokio::test]
async fn endless_output_of_a_node_is_seen_while_it_runs_and_is_bounded() {
    let server = Server::start().await;
    let run = start(&server, json!({ "nodes": [{ "id": "a", "code": ENDLESS, "timeout": 600 }] })).await;
    let headers = [("x-api-key", server.client.key.as_str())];
    let stream = server.client.open(Method::GET, &format!("/runtime/{run}/events"), &headers, "".into()).await;
    let mut body = stream.into_body().into_data_stream();
    let mut seen = String::new();
    while !seen.contains("wrote more than") {
        seen.push_str(&String::from_utf8_lossy(&body.next().await.unwrap().unwrap()));
    }
    assert!(!seen.contains("AgentCompleted") && !seen.contains("AgentFailed"), "it is running");
    server.client.post(&format!("/runtime/{run}/stop"), json!({})).await;
    wait_for(&server, &run, "failed").await;
    let logs = logs(&server.client, &run).await;
    let shown: usize = logs.iter().filter(|log| log[2] == "STDOUT").map(|log| log[3].len()).sum();
    assert_eq!(shown, 256 << 10);
    assert_eq!(logs.last().unwrap(), &line("a", "TOOL_RESULT", "IO_ERR", "the call was aborted"));
}

#[tokio::test]
async fn tool_calls_that_an_agent_makes_in_its_run_are_in_the_log_of_the_run() {
    let server = Server::start().await;
    let other = server.other_team().await;
    let run = start(&server, json!({ "nodes": [{ "id": "a", "code": "x", "approval": true }] })).await;
    wait_for(&server, &run, "awaitingapproval").await;
    let execute = |code: &str| json!({ "code": code, "agent_id": "helper" });
    let path = format!("/runtime/{run}/execute");
    assert_eq!(server.client.post(&path, execute("hello")).await.status, 200);
    assert_eq!(server.client.post(&path, execute("raise")).await.json["success"], false);
    let tool = format!("/runtime/{run}/tools/write_file?agent_id=helper");
    server.client.post(&tool, json!({ "filename": "x", "content": "y" })).await;
    // Another team has a run of the same name for its own calls.
    assert_eq!(other.post(&path, execute("theirs")).await.status, 200);
    server.client.post(&format!("/runtime/{run}/resume"), json!({})).await;
    wait_for(&server, &run, "completed").await;
    let expected = [
        line("helper", "TOOL_CALL", "IO_REQ", "execute_python({\"code\":\"hello\"})"),
        line("helper", "TOOL_OUTPUT", "STDOUT", "hello"),
        line("helper", "TOOL_RESULT", "IO_OK", "STDOUT:\nhello"),
        line("helper", "TOOL_CALL", "IO_REQ", "execute_python({\"code\":\"raise\"})"),
        line("helper", "TOOL_OUTPUT", "STDOUT", "raise"),
        line("helper", "TOOL_RESULT", "IO_ERR", "RUNTIME ERROR: E: v\nt"),
        line("helper", "TOOL_CALL", "IO_REQ", "write_file({\"content\":\"y\",\"filename\":\"x\"})"),
        line("helper", "TOOL_RESULT", "IO_OK", "Wrote 'x'."),
    ];
    let seen = logs(&server.client, &run).await;
    assert_eq!(seen[..8], expected);
    assert!(seen.iter().all(|log| !log[3].contains("theirs")), "{seen:?}");
    assert!(seen[8..].iter().all(|log| log[0] == "a"), "{seen:?}");
}

/// Programs read the channel, and agents write to it.
#[tokio::test]
async fn live_logs_are_published_to_redis_in_order_and_those_of_agents_are_events() {
    let redis = RedisServer::start();
    let url = redis.url();
    let server = Server::start_with(move |config| config.agents.sessions.redis_url = Some(url.clone())).await;
    let mut listener = redis::Client::open(redis.url()).unwrap().get_async_pubsub().await.unwrap();
    listener.subscribe("raro:live_logs").await.unwrap();
    let mut heard = listener.into_on_message();
    let run = start(&server, json!({ "nodes": [{ "id": "a", "code": "hello", "approval": true }] })).await;
    wait_for(&server, &run, "awaitingapproval").await;

    let published = json!({ "run_id": run, "agent_id": "a", "category": "THOUGHT", "message": "thinking",
        "metadata": "PLANNING", "timestamp": "2026-01-08T10:30:45.789Z", "tool_name": "x", "other": 1 });
    until("the server listens", || async {
        redis.ask(&["PUBLISH", "raro:live_logs", "not JSON"]).parse::<u32>().unwrap() >= 2
    })
    .await;
    redis.ask(&["PUBLISH", "raro:live_logs", &published.to_string()]);
    // These are of no run, or of a server.
    redis.ask(&["PUBLISH", "raro:live_logs", &json!({ "run_id": "nobody", "message": "lost" }).to_string()]);
    redis.ask(&[
        "PUBLISH",
        "raro:live_logs",
        &json!({ "run_id": run, "source": "isopod", "message": "echo" }).to_string(),
    ]);
    server.client.post(&format!("/runtime/{run}/resume"), json!({})).await;
    wait_for(&server, &run, "completed").await;

    let seen = logs(&server.client, &run).await;
    let expected = [
        line("a", "THOUGHT", "PLANNING", "thinking"),
        line("a", "TOOL_CALL", "IO_REQ", "execute_python({\"code\":\"hello\",\"language\":null})"),
        line("a", "TOOL_OUTPUT", "STDOUT", "hello"),
        line("a", "TOOL_RESULT", "IO_OK", "STDOUT:\nhello"),
    ];
    assert_eq!(seen, expected);
    let mut ours = Vec::new();
    while ours.len() < 3 {
        let message: Value =
            serde_json::from_slice(heard.next().await.unwrap().get_payload_bytes()).unwrap_or_default();
        if message["source"] == "isopod" && message["message"] != "echo" {
            ours.push(message);
        }
    }
    for (message, expected) in ours.iter().zip(&expected[1..]) {
        assert_eq!((&message["run_id"], &message["agent_id"]), (&json!(run), &json!("a")));
        assert_eq!(log(&json!({ "agent_id": message["agent_id"], "payload": message })), *expected);
        assert!(message["timestamp"].is_string());
    }
    let numbers: Vec<i64> = ours.iter().map(|message| message["event_id"].as_i64().unwrap()).collect();
    assert!(numbers.is_sorted() && ours[2]["duration_ms"].is_u64(), "{ours:?}");
}
