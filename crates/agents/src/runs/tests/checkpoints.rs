//! Nodes that are undone before they are tried again.

use super::*;

#[tokio::test]
async fn a_failed_attempt_is_undone_before_the_next_one_and_nothing_else_is() {
    let dir = tempfile::tempdir().unwrap();
    let world = Arc::new(World::default());
    let server = TestServer::begin(dir.path(), &world).await;
    let flow = "nodes: [{id: a, command: ok}, {id: risky, command: fail 2, retries: 2, checkpoint: true}, {id: b, \
                command: ok}, {id: c, command: ok, depends_on: [risky]}]";
    let run = server.start(flow).await;
    assert_eq!(server.ended(&run).await, (RunStatus::Completed, "completed".to_owned()));
    let executed = world.executed(&run);
    let risky = ["checkpoint of risky", "risky", "back to risky", "risky", "back to risky", "risky"];
    assert!(executed.windows(risky.len()).any(|part| part == risky), "{executed:?}");
    assert_eq!(executed.len(), risky.len() + 3, "{executed:?}");
}

#[tokio::test]
async fn each_node_has_a_checkpoint_of_its_own_and_a_failed_run_keeps_none() {
    let dir = tempfile::tempdir().unwrap();
    let world = Arc::new(World::default());
    let server = TestServer::begin(dir.path(), &world).await;
    let flow =
        "nodes: [{id: a, command: ok, checkpoint: true}, {id: b, command: fail, depends_on: [a], checkpoint: true}]";
    let run = server.start(flow).await;
    assert_eq!(server.ended(&run).await, (RunStatus::Failed, "node_failed".to_owned()));
    assert_eq!(world.executed(&run), ["checkpoint of a", "a", "checkpoint of b", "b"]);
    assert!(!world.has_checkpoint(&run));
}

#[tokio::test]
async fn a_checkpoint_that_fails_is_tried_again_like_the_node() {
    let dir = tempfile::tempdir().unwrap();
    let world = Arc::new(World::default());
    world.failing_checkpoints.store(1, std::sync::atomic::Ordering::Relaxed);
    let server = TestServer::begin(dir.path(), &world).await;
    let run = server.start("nodes: [{id: a, command: fail 1, checkpoint: true, retries: 2}]").await;
    assert_eq!(server.ended(&run).await.0, RunStatus::Completed);
    assert_eq!(world.executed(&run), ["checkpoint of a", "a", "back to a", "a"]);
}

#[tokio::test]
async fn no_other_node_starts_while_one_with_a_checkpoint_waits_for_a_person() {
    let dir = tempfile::tempdir().unwrap();
    let world = Arc::new(World::default());
    let server = TestServer::begin(dir.path(), &world).await;
    // It fails, and the default rules ask a person.
    let flow = "default_rules: true\nnodes: [{id: a, command: fail 1, checkpoint: true}, {id: b, command: ok}]";
    let id = server.start(flow).await;
    server.until(&id, RunStatus::AwaitingApproval).await;
    assert_eq!(world.executed(&id), ["checkpoint of a", "a"]);
    server.command(&id, Command::Resume).await.unwrap();
    assert_eq!(server.ended(&id).await.0, RunStatus::Completed);
    assert_eq!(world.executed(&id), ["checkpoint of a", "a", "back to a", "a", "b"]);
}
