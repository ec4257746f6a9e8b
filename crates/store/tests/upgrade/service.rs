//! The sandbox service: its sandboxes, agents, tasks, commands, resource use and audit log.

use std::time::Duration;

use isopod_store::Store;
use isopod_store::service::{
    AgentRow, AuditEntry, CommandQuery, CommandRow, Record, ServiceQuery, ServiceSandbox, Status, TaskRow, UsageGroup,
    Verified,
};

use crate::values::{SERVER, assert_same, at, id, team, text};

pub(crate) async fn check(store: &Store) {
    check_sandboxes(store).await;
    check_agents(store).await;
    check_tasks(store).await;
    check_commands(store).await;
    check_usage(store).await;
    check_audit(store).await;
}

fn sandbox(name: &str, number: i64, status: Status, backend: &str) -> ServiceSandbox {
    ServiceSandbox {
        id: format!("sbx-{name}"),
        team: team(),
        server: SERVER.to_owned(),
        agent: text("builder"),
        task: text("task-1"),
        sandbox: Some(id(backend)),
        template: "tpl0web".to_owned(),
        status,
        reason: None,
        repo_url: text("https://example.com/repo.git"),
        branch_name: text("main"),
        cpu_millis: Some(1500),
        memory_mib: 768,
        metadata: [("k".to_owned(), "v".to_owned())].into(),
        timeout: Duration::from_secs(900),
        create_key: format!("create-{name}"),
        idempotency: Some((format!("idem-{name}"), [9; 32])),
        created_at: at(5000 + number),
        running_at: Some(at(5100)),
        destroyed_at: None,
    }
}

async fn check_sandboxes(store: &Store) {
    let gone = ServiceSandbox {
        reason: text("timeout"),
        destroyed_at: Some(at(5200)),
        ..sandbox("gone", 2, Status::Stopped, "iended")
    };
    let paused = sandbox("paused", 1, Status::Paused, "ipaused");
    let running = sandbox("running", 0, Status::Running, "irunning");
    let all = ServiceQuery { team: Some(team()), with_gone: true, limit: 10, ..ServiceQuery::default() };
    let found = store.list_service_sandboxes(&all).await.unwrap();
    assert_same(&found, &vec![gone, paused.clone(), running.clone()]);
    assert_same(&store.live_service_sandboxes(SERVER).await.unwrap(), &vec![running, paused]);
}

async fn check_agents(store: &Store) {
    let agent = |name: &str| AgentRow {
        id: name.to_owned(),
        team: team(),
        name: format!("The {name}"),
        role: "coder".to_owned(),
        status: "idle".to_owned(),
        current_task_id: None,
        sandbox_id: None,
        avatar_url: text("https://example.com/a.png"),
        created_at: at(6000),
        updated_at: at(6000),
    };
    let builder = AgentRow {
        status: "working".to_owned(),
        current_task_id: text("task-1"),
        sandbox_id: text("sbx-running"),
        updated_at: at(57),
        ..agent("builder")
    };
    assert_same(&store.list_agents(&team(), 10).await.unwrap(), &vec![builder, agent("tester")]);
}

async fn check_tasks(store: &Store) {
    let task = |name: &str, number: i64, status: &str| TaskRow {
        id: name.to_owned(),
        team: team(),
        title: format!("Title of {name}"),
        description: "What to do".to_owned(),
        status: status.to_owned(),
        priority: "high".to_owned(),
        assigned_agent_id: None,
        sandbox_id: None,
        git_branch: None,
        pull_request_url: None,
        created_at: at(6100 + number),
        updated_at: at(6100 + number),
        completed_at: None,
    };
    let begun = TaskRow {
        assigned_agent_id: text("builder"),
        sandbox_id: text("sbx-running"),
        git_branch: text("work"),
        pull_request_url: text("https://example.com/pr/1"),
        updated_at: at(58),
        ..task("task-1", 0, "in_progress")
    };
    let completed = TaskRow {
        assigned_agent_id: text("tester"),
        updated_at: at(60),
        completed_at: Some(at(60)),
        ..task("task-2", 1, "completed")
    };
    let found = store.list_tasks(&team(), None, None, 10).await.unwrap();
    assert_same(&found, &vec![task("task-3", 2, "pending"), completed, begun]);
}

async fn check_commands(store: &Store) {
    let wanted = CommandRow {
        id: "cmd-1".to_owned(),
        team: team(),
        sandbox: "sbx-running".to_owned(),
        agent: text("builder"),
        task: text("task-1"),
        actor: "key:builder".to_owned(),
        command: "echo 'hi'".to_owned(),
        cwd: text("/work"),
        // Read separately, below.
        outcome: "",
        exit_code: Some(3),
        error: None,
        stdout: "hi\n".to_owned(),
        stderr: "oh\n".to_owned(),
        stdout_bytes: 3,
        stderr_bytes: 3,
        started_at: at(6200),
        duration_ms: 42,
    };
    let found = store.find_command("cmd-1").await.unwrap().unwrap();
    assert_same(&found.row, &wanted);
    assert_eq!((found.seq, found.outcome.as_str()), (1, "exited"));
    let of_the_task = CommandQuery { task: text("task-1"), limit: 10, ..CommandQuery::default() };
    assert_eq!(store.list_commands(&of_the_task).await.unwrap().len(), 1);
}

async fn check_usage(store: &Store) {
    let times = (at(0), at(9999));
    let report = store.report_usage(Some(&team()), None, UsageGroup::Agent, times).await.unwrap();
    let found: Vec<_> = report
        .iter()
        .map(|row| (row.name.as_deref(), row.sandboxes, row.cpu_micros, row.memory_mib_ms, row.bytes_in, row.bytes_out))
        .collect();
    assert_eq!(found, [(Some("builder"), 3, 3_000_000, 500_000, 10, 20)]);
    let runs = store.report_usage(Some(&team()), None, UsageGroup::Run, times).await.unwrap();
    assert_eq!(runs[0].name, text("isopod:run/run-1"));
}

async fn check_audit(store: &Store) {
    let head = "d39d11c5120e608e828f1521533c2167573231a415d63f10ff937307d9f79c55";
    let whole = Verified { server: SERVER.to_owned(), lines: 2, head: head.to_owned(), broken_at: None };
    assert_eq!(store.verify_audit(SERVER).await.unwrap(), whole);
    let lines = store.audit_page(SERVER, 0, 10).await.unwrap();
    let found: Vec<String> = lines.iter().map(|line| line.cells().join(" ")).collect();
    let wanted = [
        "1 2025-11-15T11:30:02.000Z key:builder sandbox.create sbx-running 201",
        "2 2025-11-15T11:30:02.000Z key:builder sandbox.execute sbx-running quota_exceeded",
    ];
    assert_eq!(found, wanted);
}

/// The next line continues the chain of the earlier version, and no line can be removed.
pub(crate) async fn check_that_the_audit_goes_on(store: &Store) {
    let entry = AuditEntry {
        at: at(9000),
        team: team(),
        actor: "isopod".to_owned(),
        action: "sandbox.destroy".to_owned(),
        sandbox: None,
        agent: None,
        task: None,
        source: None,
        status: 200,
        code: None,
        micros: 1,
    };
    let mut end = store.chain_end(SERVER).await.unwrap();
    store.write_records(&mut end, &[Record::Audit(entry)]).await.unwrap();
    let verified = store.verify_audit(SERVER).await.unwrap();
    assert_eq!((verified.lines, verified.broken_at), (3, None));
    store.tamper("DELETE FROM audit").await.unwrap_err();
}
