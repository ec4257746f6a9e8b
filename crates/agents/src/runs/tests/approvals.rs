//! Waiting for people: approvals, rules that request them, and timeouts.

use super::*;

async fn server() -> (tempfile::TempDir, TestServer) {
    let dir = tempfile::tempdir().unwrap();
    let server = TestServer::begin(dir.path(), &Arc::default()).await;
    (dir, server)
}

#[tokio::test]
async fn a_node_that_wants_approval_waits_for_it_and_others_do_not() {
    let (_dir, server) = server().await;
    let flow =
        "nodes: [{id: a, command: ok, approval: true}, {id: b, command: ok}, {id: c, command: ok, depends_on: [a]}]";
    let id = server.start(flow).await;
    server.until(&id, RunStatus::AwaitingApproval).await;
    let wrong = server.command(&id, Command::Approve { node: Some("b".into()), approved: true }).await;
    assert!(matches!(wrong, Err(CommandError::Refused(Refusal::NotWaiting(_)))), "{wrong:?}");
    server.command(&id, Command::Approve { node: Some("a".into()), approved: true }).await.unwrap();
    assert_eq!(server.ended(&id).await.1, "completed");
    assert_eq!(server.world.executed(&id).len(), 3);
}

#[tokio::test]
async fn what_is_not_paused_cannot_be_resumed_and_what_is_rejected_ends() {
    let (_dir, server) = server().await;
    let running = server.start("nodes: [{id: a, command: hang}]").await;
    assert!(matches!(server.command(&running, Command::Resume).await, Err(CommandError::Refused(Refusal::NotPaused))));
    server.command(&running, Command::Stop).await.unwrap();
    let waiting = server.start("nodes: [{id: a, command: ok, approval: true}]").await;
    server.until(&waiting, RunStatus::AwaitingApproval).await;
    server.command(&waiting, Command::Approve { node: None, approved: false }).await.unwrap();
    assert_eq!(server.ended(&waiting).await.1, "rejected");
    assert_eq!(server.world.executed(&waiting), Vec::<String>::new());
}

#[tokio::test]
async fn an_approval_that_nobody_gives_expires() {
    let (_dir, server) = server().await;
    let id = server.start("approval_timeout_ms: 20\nnodes: [{id: a, command: ok}, {id: b, command: ok, approval: true, depends_on: [a]}]").await;
    assert_eq!(server.ended(&id).await.1, "approval_expired");
}

/// The time of a run stops while it waits for a person, also across a restart.
#[tokio::test]
async fn waiting_for_a_person_does_not_use_up_the_time_of_a_run() {
    let dir = tempfile::tempdir().unwrap();
    let world = Arc::default();
    let first = TestServer::begin(dir.path(), &world).await;
    let id = first.start("timeout_ms: 30000\nnodes: [{id: a, command: ok, approval: true}]").await;
    first.until(&id, RunStatus::AwaitingApproval).await;
    let row = first.row(&id).await;
    assert!(row.deadline_at.is_none() && row.time_left_ms.is_some_and(|left| left > 0), "{row:?}");
    drop(first);
    let second = TestServer::begin(dir.path(), &world).await;
    assert_eq!(second.row(&id).await.status, RunStatus::AwaitingApproval);
    second.command(&id, Command::Resume).await.unwrap();
    assert_eq!(second.ended(&id).await.1, "completed");
}

#[tokio::test]
async fn a_guarded_command_waits_before_it_runs() {
    let (_dir, server) = server().await;
    let id = server.start("default_rules: true\nnodes: [{id: a, command: ok sudo rm -rf /}]").await;
    server.until(&id, RunStatus::AwaitingApproval).await;
    assert_eq!(server.world.executed(&id), Vec::<String>::new());
    server.command(&id, Command::Resume).await.unwrap();
    assert_eq!(server.ended(&id).await.1, "completed");
}

/// An approval is requested before the run fails.
#[tokio::test]
async fn a_guarded_failure_waits_and_is_tried_again_when_resumed() {
    let (_dir, server) = server().await;
    let id = server.start("default_rules: true\nnodes: [{id: a, command: fail 1}]").await;
    server.until(&id, RunStatus::AwaitingApproval).await;
    server.command(&id, Command::Resume).await.unwrap();
    assert_eq!(server.ended(&id).await.1, "completed");
    assert_eq!(server.world.executed(&id).len(), 2);
}

#[tokio::test]
async fn rules_interrupt_and_spawn() {
    let (_dir, server) = server().await;
    let interrupted = server
        .start("rules: [{id: r, trigger_event: AgentCompleted, condition: bad, action: {type: Interrupt, reason: no}}]\nnodes: [{id: a, command: ok bad}, {id: b, command: ok, depends_on: [a]}]")
        .await;
    assert_eq!(server.ended(&interrupted).await.1, "interrupted");
    assert_eq!(server.world.executed(&interrupted), ["a"]);
    let spawned = server
        .start("rules: [{id: r, trigger_event: AgentCompleted, condition: more, action: {type: SpawnAgent, agent_config: {id: x, command: ok}}}]\nnodes: [{id: a, command: ok more}, {id: b, command: ok, depends_on: [a]}]")
        .await;
    assert_eq!(server.ended(&spawned).await.1, "completed");
    assert_eq!(server.world.executed(&spawned), ["a", "x", "b"]);
}
