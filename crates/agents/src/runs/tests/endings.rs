//! Every way in which a run can end, each with one disposal.

use std::sync::atomic::Ordering;

use isopod_store::EventKind;

use super::*;

async fn server() -> (tempfile::TempDir, TestServer) {
    let dir = tempfile::tempdir().unwrap();
    let server = TestServer::begin(dir.path(), &Arc::default()).await;
    (dir, server)
}

#[tokio::test]
async fn a_run_whose_nodes_are_done_is_completed_and_cleaned_up() {
    let (_dir, server) = server().await;
    let id = server.start("nodes: [{id: a, command: ok 1}, {id: b, command: ok 2, depends_on: [a]}]").await;
    assert_eq!(server.ended(&id).await, (RunStatus::Completed, "completed".to_owned()));
    assert_eq!((server.world.executed(&id), server.world.made(&id)), (vec!["a".to_owned(), "b".to_owned()], 1));
    let state = server.state(&id).await;
    assert_eq!(state["completed_agents"], serde_json::json!(["a", "b"]));
    assert_eq!((state["status"].as_str(), state["nodes"][1]["output"].as_str()), (Some("completed"), Some("2")));
    assert_eq!(state["invocations"].as_array().unwrap().len(), 2);
    let events = server.store.run_events(&id, 0, 100).await.unwrap();
    let numbers: Vec<i64> = events.iter().map(|event| event.seq).collect();
    assert_eq!(numbers, (1..=numbers.len() as i64).collect::<Vec<_>>(), "no event is missing");
    assert_eq!(events.last().unwrap().kind, EventKind::RunEnded);
}

/// The words of the agent kernel, for runs, nodes and attempts.
#[tokio::test]
async fn states_are_told_in_the_kernels_words() {
    let (_dir, server) = server().await;
    let flow = "on_failure: continue\nnodes: [{id: good, command: ok}, {id: bad, command: fail, depends_on: [good]}, \
                {id: never, command: ok, depends_on: [bad]}, {id: asks, command: ok, approval: true, depends_on: [good]}]";
    let id = server.start(flow).await;
    server.until(&id, RunStatus::AwaitingApproval).await;
    let words = |state: &Value, list: &str| {
        let words = state[list].as_array().unwrap().iter();
        words.map(|one| one["status"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    for _ in 0..1000 {
        if words(&server.state(&id).await, "invocations") == ["success", "failed"] {
            break;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let state = server.state(&id).await;
    assert_eq!(state["status"], "awaitingapproval");
    assert_eq!(words(&state, "nodes"), ["success", "failed", "pending", "paused"]);
    assert_eq!(words(&state, "invocations"), ["success", "failed"]);
    server.command(&id, Command::Resume).await.unwrap();
    server.ended(&id).await;
    assert_eq!(server.state(&id).await["status"], "failed");
    let hanging = server.start("nodes: [{id: a, command: hang}]").await;
    server.until_row(&hanging, |row| row.last_seq >= 3).await;
    let state = server.state(&hanging).await;
    assert_eq!((state["status"].as_str(), words(&state, "nodes")), (Some("running"), vec!["running".to_owned()]));
    server.command(&hanging, Command::Stop).await.unwrap();
    server.ended(&hanging).await;
}

#[tokio::test]
async fn independent_nodes_run_at_the_same_time() {
    let (_dir, server) = server().await;
    let id = server.start("nodes: [{id: a, command: hang}, {id: b, command: hang}, {id: c, command: hang}]").await;
    for _ in 0..1000 {
        if server.world.executed(&id).len() == 3 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(server.world.executed(&id).len(), 3, "none of them waits for another one");
    server.command(&id, Command::Stop).await.unwrap();
    assert_eq!(server.ended(&id).await.1, "stopped");
}

#[tokio::test]
async fn a_failed_node_ends_the_run_and_later_nodes_never_start() {
    let (_dir, server) = server().await;
    let id = server.start("nodes: [{id: a, command: fail, retries: 2}, {id: b, command: ok, depends_on: [a]}]").await;
    assert_eq!(server.ended(&id).await, (RunStatus::Failed, "node_failed".to_owned()));
    assert_eq!(server.world.executed(&id), ["a", "a", "a"]);
}

#[tokio::test]
async fn a_blocked_graph_is_failed_after_what_could_run_has_run() {
    let (_dir, server) = server().await;
    let flow = "on_failure: continue\nnodes: [{id: a, command: fail}, {id: b, command: ok, depends_on: [a]}, \
                {id: c, command: ok}, {id: d, command: ok, depends_on: [c]}]";
    let id = server.start(flow).await;
    assert_eq!(server.ended(&id).await, (RunStatus::Failed, "blocked".to_owned()));
    assert!(server.row(&id).await.error.unwrap().contains("a, b"));
    assert!(server.world.executed(&id).contains(&"d".to_owned()));
}

#[tokio::test]
async fn the_time_of_a_run_and_of_a_node_is_enforced() {
    let (_dir, server) = server().await;
    let of_run = server.start("timeout_ms: 50\nnodes: [{id: a, command: hang}]").await;
    assert_eq!(server.ended(&of_run).await.1, "timed_out");
    let of_node = server.start("nodes: [{id: a, command: hang, timeout: 0.05, retries: 1}]").await;
    assert_eq!(server.ended(&of_node).await, (RunStatus::Failed, "node_failed".to_owned()));
    assert_eq!(server.world.executed(&of_node), ["a", "a"], "each attempt has the time of the node");
    let state = server.state(&of_node).await;
    assert_eq!(state["nodes"][0]["status"], "failed", "{state}");
    assert_eq!(state["nodes"][0]["error"], "the node took longer than 50ms", "{state}");
}

/// A run is idle between the moment in which it is recorded and the first turn of its task.
#[tokio::test]
async fn a_run_is_idle_until_its_first_turn_and_the_next_server_runs_it() {
    let dir = tempfile::tempdir().unwrap();
    let world = Arc::default();
    // The first two steps lie around the commit that records the run, the third is before that of its first turn.
    let killer = Killer::at(2);
    let server = TestServer::begin_with(dir.path(), &world, Arc::clone(&killer), None).await;
    let id = server.start("nodes: [{id: a, command: ok}]").await;
    killer.has_killed().await;
    let state = server.state(&id).await;
    assert_eq!(state["status"], "idle", "{state}");
    assert_eq!(state["nodes"][0]["status"], "pending", "{state}");
    assert_eq!(world.executed(&id), Vec::<String>::new());
    drop(server);
    let server = TestServer::begin(dir.path(), &world).await;
    assert_eq!(server.ended(&id).await, (RunStatus::Completed, "completed".to_owned()));
    assert_eq!(world.executed(&id), ["a"]);
}

#[tokio::test]
async fn cancelled_and_stopped_runs_are_cleaned_up_and_cannot_be_stopped_twice() {
    let (_dir, server) = server().await;
    for (command, reason) in [(Command::Stop, "stopped"), (Command::Cancel, "cancelled")] {
        let id = server.start("nodes: [{id: a, command: hang}]").await;
        server.command(&id, command).await.unwrap();
        assert_eq!(server.ended(&id).await.1, reason);
        let again = server.command(&id, Command::Stop).await;
        assert!(matches!(again, Err(CommandError::Refused(Refusal::Ended))), "{again:?}");
    }
    let unknown = server.command(&RunId::random(), Command::Stop).await;
    assert!(matches!(unknown, Err(CommandError::Refused(Refusal::NotFound))));
}

#[tokio::test]
async fn an_executor_that_panics_fails_its_node_and_nothing_else() {
    let (_dir, server) = server().await;
    let id = server.start("nodes: [{id: a, command: panic}]").await;
    assert_eq!(server.ended(&id).await.1, "node_failed");
}

#[tokio::test]
async fn a_disposal_that_fails_is_tried_until_it_succeeds() {
    let (_dir, server) = server().await;
    server.world.failing_disposals.store(4, Ordering::Relaxed);
    let id = server.start("nodes: [{id: a, command: ok}]").await;
    assert_eq!(server.ended(&id).await.1, "completed");
}

/// The reverse: a sandbox whose run has ended.
#[tokio::test]
async fn a_sandbox_that_appears_after_the_end_is_reaped() {
    let (_dir, server) = server().await;
    let id = server.start("nodes: [{id: a, command: ok}]").await;
    server.ended(&id).await;
    server.world.make_sandbox(&id);
    let stranger = RunId::random();
    server.world.make_sandbox(&stranger);
    reap::reap(&server.runs).await.unwrap();
    for _ in 0..1000 {
        if !server.world.is_alive(&id) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    server.ended(&id).await;
    assert!(server.world.is_alive(&stranger), "it is none of our runs");
}

#[tokio::test]
async fn ten_thousand_nodes_run_to_their_end() {
    let (_dir, server) = server().await;
    let node = |place: usize| {
        format!(
            "{{id: n{place}, command: ok, depends_on: [{}]}}",
            if place < 100 { String::new() } else { format!("n{}", place - 100) }
        )
    };
    let count = if std::env::var_os("ISOPOD_FULL").is_some() { 10_000 } else { 1000 };
    let id = server.start(&format!("nodes: [{}]", (0..count).map(node).collect::<Vec<_>>().join(", "))).await;
    for _ in 0..100 {
        if server.row(&id).await.status.is_terminal() {
            break;
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    assert_eq!(server.ended(&id).await.1, "completed");
    assert_eq!(server.world.executed(&id).len(), count);
}
