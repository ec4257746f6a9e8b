//! Every way in which a run can end, each with one disposal.

use std::sync::atomic::Ordering;

use isopod_store::EventKind;

use super::*;

async fn life() -> (tempfile::TempDir, Life) {
    let dir = tempfile::tempdir().unwrap();
    let life = Life::begin(dir.path(), &Arc::default()).await;
    (dir, life)
}

#[tokio::test]
async fn a_run_whose_nodes_are_done_is_completed_and_cleaned_up() {
    let (_dir, life) = life().await;
    let id = life.start("nodes: [{id: a, command: ok 1}, {id: b, command: ok 2, depends_on: [a]}]").await;
    assert_eq!(life.ended(&id).await, (RunStatus::Completed, "completed".to_owned()));
    assert_eq!((life.world.executed(&id), life.world.made(&id)), (vec!["a".to_owned(), "b".to_owned()], 1));
    let state = life.state(&id).await;
    assert_eq!(state["completed_agents"], serde_json::json!(["a", "b"]));
    assert_eq!((state["status"].as_str(), state["nodes"][1]["output"].as_str()), (Some("completed"), Some("2")));
    assert_eq!(state["invocations"].as_array().unwrap().len(), 2);
    let events = life.store.run_events(&id, 0, 100).await.unwrap();
    let numbers: Vec<i64> = events.iter().map(|event| event.seq).collect();
    assert_eq!(numbers, (1..=numbers.len() as i64).collect::<Vec<_>>(), "no event is missing");
    assert_eq!(events.last().unwrap().kind, EventKind::RunEnded);
}

/// The words of the agent kernel, for runs, nodes and attempts.
#[tokio::test]
async fn states_are_told_in_the_kernels_words() {
    let (_dir, life) = life().await;
    let flow = "on_failure: continue\nnodes: [{id: good, command: ok}, {id: bad, command: fail, depends_on: [good]}, \
                {id: never, command: ok, depends_on: [bad]}, {id: asks, command: ok, approval: true, depends_on: [good]}]";
    let id = life.start(flow).await;
    life.until(&id, RunStatus::AwaitingApproval).await;
    let words = |state: &Value, list: &str| {
        let words = state[list].as_array().unwrap().iter();
        words.map(|one| one["status"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    for _ in 0..1000 {
        if words(&life.state(&id).await, "invocations") == ["success", "failed"] {
            break;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let state = life.state(&id).await;
    assert_eq!(state["status"], "awaitingapproval");
    assert_eq!(words(&state, "nodes"), ["success", "failed", "pending", "paused"]);
    assert_eq!(words(&state, "invocations"), ["success", "failed"]);
    life.command(&id, Command::Resume).await.unwrap();
    life.ended(&id).await;
    assert_eq!(life.state(&id).await["status"], "failed");
    let hanging = life.start("nodes: [{id: a, command: hang}]").await;
    life.until_row(&hanging, |row| row.last_seq >= 3).await;
    let state = life.state(&hanging).await;
    assert_eq!((state["status"].as_str(), words(&state, "nodes")), (Some("running"), vec!["running".to_owned()]));
    life.command(&hanging, Command::Stop).await.unwrap();
    life.ended(&hanging).await;
}

#[tokio::test]
async fn independent_nodes_run_at_the_same_time() {
    let (_dir, life) = life().await;
    let id = life.start("nodes: [{id: a, command: hang}, {id: b, command: hang}, {id: c, command: hang}]").await;
    for _ in 0..1000 {
        if life.world.executed(&id).len() == 3 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(life.world.executed(&id).len(), 3, "none of them waits for another one");
    life.command(&id, Command::Stop).await.unwrap();
    assert_eq!(life.ended(&id).await.1, "stopped");
}

#[tokio::test]
async fn a_failed_node_ends_the_run_and_later_nodes_never_start() {
    let (_dir, life) = life().await;
    let id = life.start("nodes: [{id: a, command: fail, retries: 2}, {id: b, command: ok, depends_on: [a]}]").await;
    assert_eq!(life.ended(&id).await, (RunStatus::Failed, "node_failed".to_owned()));
    assert_eq!(life.world.executed(&id), ["a", "a", "a"]);
}

#[tokio::test]
async fn a_blocked_graph_is_failed_after_what_could_run_has_run() {
    let (_dir, life) = life().await;
    let flow = "on_failure: continue\nnodes: [{id: a, command: fail}, {id: b, command: ok, depends_on: [a]}, \
                {id: c, command: ok}, {id: d, command: ok, depends_on: [c]}]";
    let id = life.start(flow).await;
    assert_eq!(life.ended(&id).await, (RunStatus::Failed, "blocked".to_owned()));
    assert!(life.row(&id).await.error.unwrap().contains("a, b"));
    assert!(life.world.executed(&id).contains(&"d".to_owned()));
}

#[tokio::test]
async fn the_time_of_a_run_and_of_a_node_is_enforced() {
    let (_dir, life) = life().await;
    let of_run = life.start("timeout_ms: 50\nnodes: [{id: a, command: hang}]").await;
    assert_eq!(life.ended(&of_run).await.1, "timed_out");
}

#[tokio::test]
async fn cancelled_and_stopped_runs_are_cleaned_up_and_cannot_be_stopped_twice() {
    let (_dir, life) = life().await;
    for (command, reason) in [(Command::Stop, "stopped"), (Command::Cancel, "cancelled")] {
        let id = life.start("nodes: [{id: a, command: hang}]").await;
        life.command(&id, command).await.unwrap();
        assert_eq!(life.ended(&id).await.1, reason);
        let again = life.command(&id, Command::Stop).await;
        assert!(matches!(again, Err(CommandError::Refused(Refusal::Ended))), "{again:?}");
    }
    let unknown = life.command(&RunId::random(), Command::Stop).await;
    assert!(matches!(unknown, Err(CommandError::Refused(Refusal::NotFound))));
}

#[tokio::test]
async fn hands_that_panic_fail_their_node_and_nothing_else() {
    let (_dir, life) = life().await;
    let id = life.start("nodes: [{id: a, command: panic}]").await;
    assert_eq!(life.ended(&id).await.1, "node_failed");
}

#[tokio::test]
async fn a_disposal_that_fails_is_tried_until_it_succeeds() {
    let (_dir, life) = life().await;
    life.world.failing_disposals.store(4, Ordering::Relaxed);
    let id = life.start("nodes: [{id: a, command: ok}]").await;
    assert_eq!(life.ended(&id).await.1, "completed");
}

/// The other way round, a sandbox whose run is over.
#[tokio::test]
async fn a_sandbox_that_appears_after_the_end_is_reaped() {
    let (_dir, life) = life().await;
    let id = life.start("nodes: [{id: a, command: ok}]").await;
    life.ended(&id).await;
    life.world.make_sandbox(&id);
    let stranger = RunId::random();
    life.world.make_sandbox(&stranger);
    reap::reap(&life.runs).await.unwrap();
    for _ in 0..1000 {
        if !life.world.is_alive(&id) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    life.ended(&id).await;
    assert!(life.world.is_alive(&stranger), "it is none of our runs");
}

#[tokio::test]
async fn ten_thousand_nodes_run_to_their_end() {
    let (_dir, life) = life().await;
    let node = |place: usize| {
        format!(
            "{{id: n{place}, command: ok, depends_on: [{}]}}",
            if place < 100 { String::new() } else { format!("n{}", place - 100) }
        )
    };
    let count = if std::env::var_os("ISOPOD_FULL").is_some() { 10_000 } else { 1000 };
    let id = life.start(&format!("nodes: [{}]", (0..count).map(node).collect::<Vec<_>>().join(", "))).await;
    for _ in 0..100 {
        if life.row(&id).await.status.is_terminal() {
            break;
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    assert_eq!(life.ended(&id).await.1, "completed");
    assert_eq!(life.world.executed(&id).len(), count);
}
