//! What nodes write is in the events of their run while they run, and in order.

use isopod_store::{EventKind, RunEvent};
use serde_json::json;

use super::*;

impl TestServer {
    async fn events(&self, id: &RunId) -> Vec<RunEvent> {
        self.store.run_events(id, 0, 1000).await.unwrap()
    }

    /// The events of a node in short.
    async fn story(&self, id: &RunId) -> Vec<String> {
        let short = |event: RunEvent| match event.kind {
            EventKind::IntermediateLog => {
                let text = |name: &str| event.data[name].as_str().unwrap_or_default().to_owned();
                format!("{} {}", text("metadata"), text("message").trim_end())
            }
            kind => kind.text().to_owned(),
        };
        self.events(id).await.into_iter().filter(|event| event.node.as_deref() == Some("a")).map(short).collect()
    }
}

#[tokio::test]
async fn output_is_an_event_before_the_node_ends() {
    let dir = tempfile::tempdir().unwrap();
    let server = TestServer::begin(dir.path(), &Arc::default()).await;
    let id = server.start("nodes: [{id: a, command: hang up}]").await;
    for _ in 0..2000 {
        if server.story(&id).await.iter().any(|line| line == "STDOUT up") {
            break;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let expected = ["ToolCall", "AgentStarted", "IO_REQ run_command({\"command\":\"hang up\"})", "STDOUT up"];
    assert_eq!(server.story(&id).await, expected);
    assert_eq!(server.row(&id).await.status, RunStatus::Running);
    server.command(&id, Command::Stop).await.unwrap();
    server.ended(&id).await;
    assert_eq!(server.story(&id).await[4..], ["IO_ERR the call was aborted"]);
}

#[tokio::test]
async fn output_comes_before_the_end_of_its_node_and_survives_retries() {
    let dir = tempfile::tempdir().unwrap();
    let server = TestServer::begin(dir.path(), &Arc::default()).await;
    let id = server.start("nodes: [{id: a, command: say one two}]").await;
    assert_eq!(server.ended(&id).await.1, "completed");
    let story = server.story(&id).await;
    let call = "IO_REQ run_command({\"command\":\"say one two\"})";
    assert_eq!(story, ["ToolCall", "AgentStarted", call, "STDOUT one\ntwo", "IO_OK one two", "AgentCompleted"]);
    let failing = server.start("nodes: [{id: a, command: fail 1, retries: 1}]").await;
    assert_eq!(server.ended(&failing).await.1, "completed");
    let ends = |story: &[String]| story.iter().filter(|line| line.starts_with("IO_")).count();
    assert_eq!(ends(&server.story(&failing).await), 4, "each attempt has its own call and result");
    let numbers: Vec<i64> = server.events(&failing).await.iter().map(|event| event.seq).collect();
    assert_eq!(numbers, (1..=numbers.len() as i64).collect::<Vec<_>>(), "without gaps");
}

/// However many calls and agents write. What happens to the nodes is recorded all the same.
#[tokio::test]
async fn the_output_of_a_run_is_bounded_and_its_end_is_told_nevertheless() {
    const MAX_RUN: usize = 16 << 20;
    const PIECE: usize = 480 << 10;
    let dir = tempfile::tempdir().unwrap();
    let server = TestServer::begin(dir.path(), &Arc::default()).await;
    let id = server.start("nodes: [{id: a, command: hang}]").await;
    server.until(&id, RunStatus::Running).await;
    let output = server.runs.shared.find(&id).unwrap().output;
    for number in 0..20 {
        // Two of them fill the queue, so a third would be dropped there.
        for half in ["x", "y"] {
            let message = json!({ "message": half.repeat(PIECE), "number": number });
            output.message(Some("a".to_owned()), message);
        }
        while !output.is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
    server.command(&id, Command::Stop).await.unwrap();
    assert_eq!(server.ended(&id).await.1, "stopped");

    let events = server.events(&id).await;
    let logs: Vec<_> = events.iter().filter(|event| event.kind == EventKind::IntermediateLog).collect();
    let shown: Vec<_> = logs.iter().filter(|event| event.data["number"].is_number()).collect();
    let bytes: usize = shown.iter().map(|event| event.data.to_string().len()).sum();
    // The call itself is in the log too.
    assert!((MAX_RUN - 1000..MAX_RUN + PIECE).contains(&bytes), "{bytes}");
    let numbers: Vec<i64> = shown.iter().map(|event| event.data["number"].as_i64().unwrap()).collect();
    assert!(numbers.is_sorted() && numbers[0] == 0, "the first ones: {numbers:?}");
    let told = "the run wrote more than 16777216 bytes; the results of its nodes have the rest";
    assert_eq!(logs.iter().filter(|event| event.data["message"] == told).count(), 1);
    assert_eq!(logs.last().unwrap().data["message"], told, "nothing comes after it, not even the end of the call");
    assert_eq!(events.last().unwrap().kind, EventKind::RunEnded);
}
