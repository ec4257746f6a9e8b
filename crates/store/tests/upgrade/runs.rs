//! Runs of workflows: their nodes, invocations and events, and the pending cleanups.

use isopod_store::{
    Cleanup, EventKind, InvocationRow, NodeRow, NodeSpec, NodeState, Resource, RunEvent, RunId, RunQuery, RunRow,
    RunSettings, RunStatus, Store,
};
use serde_json::json;

use crate::values::{assert_same, at, team, text};

pub(crate) async fn check(store: &Store) {
    check_runs(store).await;
    check_nodes(store).await;
    check_history(store).await;
    check_cleanups(store).await;
}

fn id(text: &str) -> RunId {
    text.parse().unwrap()
}

fn settings() -> RunSettings {
    let rule = json!({
        "id": "r1", "name": "stop", "trigger_event": "ToolCall", "condition": "rm -rf",
        "action": {"type": "Interrupt", "reason": "no"},
    });
    let settings = json!({
        "max_token_budget": 1000, "timeout_ms": 60000, "approval_timeout_ms": 3000, "on_failure": "continue",
        "attached_files": ["plan.md"], "soft_failures": true, "rules": [rule],
    });
    serde_json::from_value(settings).unwrap()
}

fn run(name: &str, status: RunStatus) -> RunRow {
    RunRow {
        id: id(name),
        team: team(),
        workflow: "flow".to_owned(),
        name: format!("name of {name}"),
        client: "tests".to_owned(),
        status,
        reason: None,
        error: None,
        paused: None,
        settings: settings(),
        tokens_used: 77,
        last_seq: 2,
        created_at: at(3000),
        deadline_at: None,
        time_left_ms: None,
        approval_until: None,
        ended_at: None,
    }
}

async fn check_runs(store: &Store) {
    let wanted = vec![
        RunRow { deadline_at: Some(at(9000)), ..run("run-1", RunStatus::Running) },
        RunRow {
            paused: text("a node asks"),
            time_left_ms: Some(1234),
            approval_until: Some(at(8000)),
            ..run("run-asking", RunStatus::AwaitingApproval)
        },
        RunRow {
            reason: text("all nodes are done"),
            ended_at: Some(at(3500)),
            ..run("run-done", RunStatus::Completed)
        },
        RunRow {
            reason: text("a node failed"),
            error: text("exit 1"),
            ended_at: Some(at(3600)),
            ..run("run-failed", RunStatus::Failed)
        },
    ];
    let all = RunQuery { team: team(), status: None, limit: 10, offset: 0 };
    assert_same(&store.list_runs(&all).await.unwrap(), &wanted);
    assert_eq!(store.live_runs().await.unwrap(), [id("run-1"), id("run-asking")]);
    store.check_here(Resource::Run(&id("run-1"))).await.unwrap();
}

fn node(spec: NodeSpec, place: i64, state: NodeState) -> NodeRow {
    NodeRow {
        spec,
        place,
        state,
        attempts: 1,
        next_at: None,
        approved: false,
        output: None,
        error: None,
        started_at: Some(at(3001)),
        ended_at: None,
    }
}

async fn check_nodes(store: &Store) {
    let spec = |value| serde_json::from_value::<NodeSpec>(value).unwrap();
    let code = spec(json!({"id": "a", "code": "print(1)", "retries": 2, "timeout": 1.5}));
    let agent = spec(json!({
        "id": "b", "agent": "http://agents.example", "depends_on": ["a"], "approval": true, "role": "worker",
        "tools": ["shell"], "input_schema": {"type": "object"}, "prompt": "go on",
    }));
    let wanted = vec![
        NodeRow {
            output: Some(json!({"text": "1", "n": [1, 2.5, null]})),
            ended_at: Some(at(3002)),
            ..node(code, 0, NodeState::Done)
        },
        NodeRow {
            next_at: Some(at(3100)),
            approved: true,
            error: text("not yet"),
            ..node(agent, 1, NodeState::Waiting)
        },
    ];
    assert_same(&store.run_nodes(&id("run-1")).await.unwrap(), &wanted);
}

async fn check_history(store: &Store) {
    let invocation =
        InvocationRow { id: "inv-1".to_owned(), number: 1, node: "a".to_owned(), body: json!({"ok": true}) };
    let event = |seq, kind, node, data| RunEvent { seq, at: at(3000 + seq), kind, node, data };
    let events = vec![
        event(1, EventKind::RunStarted, None, json!({})),
        event(2, EventKind::AgentCompleted, text("a"), json!({"tokens": 77})),
    ];
    for run in ["run-1", "run-asking", "run-done", "run-failed"] {
        assert_same(&store.run_invocations(&id(run)).await.unwrap(), &vec![invocation.clone()]);
        assert_same(&store.run_events(&id(run), 0, 10).await.unwrap(), &events);
    }
}

async fn check_cleanups(store: &Store) {
    let failed = Cleanup {
        run: id("run-failed"),
        team: team(),
        sandbox_done: true,
        agent_done: false,
        killed: false,
        attempts: 1,
    };
    assert_same(&store.due_cleanups(at(7000), 10).await.unwrap(), &vec![failed]);
    assert_eq!(store.next_cleanup().await.unwrap(), Some(at(7000)));
    assert_eq!(store.cleanup_done(&id("run-done")).await.unwrap(), Some(true));
    assert_eq!(store.cleanup_done(&id("run-failed")).await.unwrap(), Some(false));
    assert_eq!(store.cleanup_done(&id("run-1")).await.unwrap(), None);
}
