//! The sandbox service with a backend in plain Rust: what it does, and what is refused.

use crate::support;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use http::Method;
use http_body_util::BodyExt as _;
use isopod_server::ServerConfig;
use isopod_service::backend::{BackendError, Effect, Place};
use isopod_service::{CommandPolicy, ServiceConfig};
use isopod_store::Scope;
use isopod_store::service::QuotaLimits;
use serde_json::{Value, json};

use support::backend::unavailable;
use support::server::until;
use support::{Client, FakeBackend, Server, backend, log};

async fn start() -> (Server, Arc<FakeBackend>) {
    start_with(|_| {}).await
}

async fn start_with(change: impl Fn(&mut ServerConfig) + Send + Sync + 'static) -> (Server, Arc<FakeBackend>) {
    let fake = backend::fake();
    let given = Arc::clone(&fake);
    let server = Server::start_with(move |config| {
        config.service.backend = Some(Arc::clone(&given) as _);
        change(config);
    })
    .await;
    (server, fake)
}

async fn create(client: &Client, body: Value) -> Value {
    let made = client.post("/api/v1/sandboxes", body).await;
    assert_eq!(made.status, 201, "{made:?}");
    made.json
}

async fn status_of(client: &Client, id: &str) -> Value {
    client.get(&format!("/api/v1/sandboxes/{id}")).await.json["status"].clone()
}

/// Created within five seconds, recorded with its agent and task, its output captured and kept, destroyed with its row
/// updated; with the status codes 201, 200, 204 and 404.
#[tokio::test]
async fn a_sandbox_is_made_used_and_destroyed_and_its_row_tells_it() {
    let (server, fake) = start().await;
    let started = Instant::now();
    let body = json!({ "agent_id": "a1", "task_id": "t1", "metadata": { "k": "v" }, "timeout": 600 });
    let made = create(&server.client, body).await;
    assert!(started.elapsed() < Duration::from_secs(5));
    let id = made["id"].as_str().unwrap();
    assert_eq!((&made["agent_id"], &made["task_id"], &made["status"]), (&json!("a1"), &json!("t1"), &json!("running")));
    assert!(made["created_at"].is_string() && made["destroyed_at"].is_null() && made["sandbox_id"].is_string());
    let spec = fake.specs.lock().unwrap()[0].clone();
    assert_eq!((spec.metadata["agent_id"].as_str(), spec.timeout.as_secs()), ("a1", 600));

    let execute = format!("/api/v1/sandboxes/{id}/execute");
    let done = server.client.post(&execute, json!({ "command": "both" })).await;
    assert_eq!(done.status, 200, "{done:?}");
    assert_eq!((&done.json["stdout"], &done.json["stderr"]), (&json!("out\n"), &json!("err\n")));
    assert_eq!((&done.json["exit_code"], &done.json["duration_ms"]), (&json!(0), &json!(3)));
    // A command's time limit is five minutes by default, whatever the sandbox's is.
    assert_eq!(fake.commands.lock().unwrap()[0].timeout, Duration::from_secs(300));
    let done = server.client.post(&execute, json!({ "argv": ["fail", "3"], "timeout": 7, "cwd": "/x" })).await;
    assert_eq!((done.status, &done.json["exit_code"]), (200, &json!(3)));
    let timed_out = server.client.post(&execute, json!({ "command": "slow", "timeout": 1 })).await;
    assert_eq!((&timed_out.json["timed_out"], &timed_out.json["stdout"]), (&json!(true), &json!("begun")));

    // The command is recorded separately.
    let history = server.client.get(&format!("/api/v1/commands?sandbox_id={id}")).await.json;
    let outcomes: Vec<_> = history["commands"].as_array().unwrap().iter().map(|one| one["outcome"].clone()).collect();
    assert_eq!(outcomes, [json!("timed_out"), json!("exited"), json!("exited")]);
    let first = history["commands"][2]["id"].as_str().unwrap();
    let kept = server.client.get(&format!("/api/v1/commands/{first}")).await.json;
    assert_eq!((&kept["stdout"], &kept["agent_id"], &kept["command"]), (&json!("out\n"), &json!("a1"), &json!("both")));

    // Ending it twice is fine.
    for _ in 0..2 {
        assert_eq!(server.client.delete(&format!("/api/v1/sandboxes/{id}")).await.status, 204);
    }
    assert_eq!(fake.count(), 0);
    let row = server.client.get(&format!("/api/v1/sandboxes/{id}")).await.json;
    assert_eq!((&row["status"], row["destroyed_at"].is_string()), (&json!("stopped"), true));
    let late = server.client.post(&execute, json!({ "command": "echo x" })).await;
    assert_eq!((late.status, &late.json["error_code"]), (409, &json!("sandbox_not_running")));
    for path in ["/api/v1/sandboxes/inobody", "/api/v1/commands/none", "/api/v1/tasks/none", "/api/v1/agents/none"] {
        assert_eq!(server.client.get(path).await.status, 404, "{path}");
    }
    assert_eq!(server.client.delete("/api/v1/sandboxes/inobody").await.status, 404);
}

/// Every error has a stable code. Internal errors stay internal and are a 500.
#[tokio::test]
async fn bad_requests_are_refused_with_codes_and_change_nothing() {
    let (server, fake) = start().await;
    let made = create(&server.client, json!({})).await;
    let id = made["id"].as_str().unwrap();
    let at = |verb: &str| format!("/api/v1/sandboxes/{id}/{verb}");
    let long = "x".repeat(200);
    let bad = [
        ("/api/v1/sandboxes".to_owned(), json!({ "agent_id": "a b; DROP TABLE agents" })),
        ("/api/v1/sandboxes".to_owned(), json!({ "agent_id": long })),
        ("/api/v1/sandboxes".to_owned(), json!({ "agent_id": 7 })),
        ("/api/v1/sandboxes".to_owned(), json!({ "team_id": "other" })),
        ("/api/v1/sandboxes".to_owned(), json!({ "timeout": 0 })),
        ("/api/v1/sandboxes".to_owned(), json!({ "timeout": 90_000 })),
        ("/api/v1/sandboxes".to_owned(), json!({ "limits": { "memory_mb": 1 } })),
        ("/api/v1/sandboxes".to_owned(), json!({ "metadata": { "isopod.service": "x" } })),
        ("/api/v1/sandboxes".to_owned(), json!({ "attempt": 1 })),
        (at("execute"), json!({})),
        (at("execute"), json!({ "command": "x", "argv": ["x"] })),
        (at("execute"), json!({ "argv": [] })),
        (at("execute"), json!({ "command": " " })),
        (at("execute"), json!({ "command": "x", "timeout": 0 })),
        (at("execute"), json!({ "command": "a\u{0}b" })),
        (at("execute"), json!({ "command": "x", "env": { "A=B": "c" } })),
        ("/api/v1/tasks".to_owned(), json!({ "title": "x", "priority": "asap" })),
        ("/api/v1/tasks".to_owned(), json!({ "title": "" })),
        ("/api/v1/agents".to_owned(), json!({ "name": "x", "id": "../x" })),
        ("/api/v1/git/commit".to_owned(), json!({ "sandbox_id": id, "message": "did things" })),
        ("/api/v1/git/clone".to_owned(), json!({ "sandbox_id": id, "repo_url": "https://a:b@host/x" })),
    ];
    for (path, body) in bad {
        let answer = server.client.post(&path, body.clone()).await;
        let code = answer.json["error_code"].as_str();
        assert_eq!((answer.status, code), (400, Some("invalid_request")), "{path} {body}: {answer:?}");
    }
    for query in ["status=asleep", "limit=0", "before=x", "colour=red", "include_ended=maybe"] {
        assert_eq!(server.client.get(&format!("/api/v1/sandboxes?{query}")).await.status, 400, "{query}");
    }
    let stranger = Client::new(server.address, "e2b_nobody").get("/api/v1/sandboxes").await;
    assert_eq!((stranger.status, &stranger.json["error_code"]), (401, &json!("invalid_key")));
    assert_eq!((fake.count(), fake.commands.lock().unwrap().len()), (1, 0));

    fake.create_broken.store(true, Ordering::Relaxed);
    let broken = server.client.post("/api/v1/sandboxes", json!({})).await;
    assert_eq!((broken.status, &broken.json["error_code"]), (500, &json!("backend_failed")));
    assert!(!broken.text.contains("secret"), "{broken:?}");
    fake.is_down.store(true, Ordering::Relaxed);
    let down = server.client.post(&at("execute"), json!({ "command": "echo x" })).await;
    assert_eq!(down.status, 503, "{down:?}");
    assert!(["backend_unavailable", "backend_down"].contains(&down.json["error_code"].as_str().unwrap()));
}

/// What the backend refuses has a status and a code of its own, and is logged with its agent and task.
#[tokio::test]
async fn refusals_of_the_backend_have_statuses_and_codes_and_are_logged_with_agent_and_task() {
    log::keep();
    let (server, fake) = start_with(|config| {
        config.service.resilience.first_wait = Duration::from_millis(1);
        config.service.resilience.max_wait = Duration::from_millis(2);
        config.service.resilience.breaker.failures = 1000;
    })
    .await;
    let refusals: [(Refusal, u16, &str, &str); 4] = [
        (timeout, 504, "backend_timeout", "create took longer than 60s"),
        (quota, 429, "backend_quota_exceeded", "twenty sandboxes run"),
        (invalid_key, 502, "backend_invalid_key", "the backend does not accept its key: expired"),
        (|| unavailable(Effect::None), 503, "backend_unavailable", "injected"),
    ];
    for (refusal, status, code, message) in refusals {
        let (agent, task) = (format!("agent-{code}"), format!("task-{code}"));
        let body = json!({ "agent_id": agent, "task_id": task });
        let made = create(&server.client, body.clone()).await;
        *fake.refusal.lock().unwrap() = Some(refusal);
        let path = format!("/api/v1/sandboxes/{}", made["id"].as_str().unwrap());
        let execute = server.client.post(&format!("{path}/execute"), json!({ "command": "echo x" })).await;
        let refused = [
            ("sandbox.create", server.client.post("/api/v1/sandboxes", body).await),
            ("sandbox.execute", execute),
            ("sandbox.destroy", server.client.delete(&path).await),
        ];
        *fake.refusal.lock().unwrap() = None;
        for (action, answer) in refused {
            assert_eq!((answer.status, &answer.json["error_code"]), (status, &json!(code)), "{action}: {answer:?}");
            assert!(answer.json["message"].as_str().unwrap().contains(message), "{action}: {answer:?}");
            assert_eq!(answer.headers.contains_key("retry-after"), status == 429, "{action}: {answer:?}");
            let audited = server.client.get(&format!("/api/v1/audit?action={action}&limit=1")).await.json;
            assert_eq!(audited["lines"][0]["code"], code, "{audited}");
        }
        let logged = log::lines_with(&agent);
        assert_eq!(logged.len(), 3, "one line for each of the three calls: {logged:#?}");
        assert!(logged.iter().all(|line| line.contains(&format!("task=\"{task}\"")) && line.contains(message)));
        assert_eq!(server.client.delete(&path).await.status, 204);
    }
    assert_eq!(fake.count(), 0, "what failed left nothing");
}

type Refusal = fn() -> BackendError;

fn timeout() -> BackendError {
    BackendError::Timeout { what: "create".to_owned(), limit: Duration::from_secs(60), place: Place::Sandbox }
}

fn quota() -> BackendError {
    let hour = Some(Duration::from_secs(3600));
    BackendError::Quota { message: "twenty sandboxes run".to_owned(), retry_after: hour }
}

fn invalid_key() -> BackendError {
    BackendError::InvalidKey { message: "expired".to_owned() }
}

/// The defaults that the documentation states.
#[tokio::test]
async fn a_sandbox_lives_for_at_most_a_day_and_old_ones_are_searched_every_hour() {
    let hour = Duration::from_secs(3600);
    let ServiceConfig { stale_after, reap_every, check_every, heartbeat, timeout, command_timeout, .. } =
        ServiceConfig::default();
    assert_eq!((stale_after, reap_every), (24 * hour, hour));
    assert_eq!((check_every, heartbeat), (Duration::from_secs(30), Duration::from_secs(30)));
    assert_eq!((timeout, command_timeout), (hour, Duration::from_secs(300)));

    let (server, fake) = start().await;
    for too_long in [86_401, 90_000] {
        let refused = server.client.post("/api/v1/sandboxes", json!({ "timeout": too_long })).await;
        assert_eq!((refused.status, &refused.json["error_code"]), (400, &json!("invalid_request")), "{refused:?}");
    }
    assert_eq!(fake.count(), 0);
    create(&server.client, json!({ "timeout": 86_400 })).await;
    create(&server.client, json!({})).await;
    let asked: Vec<Duration> = fake.specs.lock().unwrap().iter().map(|spec| spec.timeout).collect();
    assert_eq!(asked, [24 * hour, hour]);
}

/// A transient failure is retried, and a repeated create request creates one sandbox.
#[tokio::test]
async fn a_create_that_fails_for_a_moment_is_tried_again_and_one_sent_again_makes_one() {
    let (server, fake) = start().await;
    fake.create_fails.store(1, Ordering::Relaxed);
    create(&server.client, json!({ "agent_id": "a" })).await;
    assert_eq!((fake.creates.load(Ordering::Relaxed), fake.count()), (2, 1));
    let send = |key: &'static str, body: Value| {
        let client = server.client.clone();
        async move { client.call(Method::POST, "/api/v1/sandboxes", &[("idempotency-key", key)], Some(body)).await }
    };
    let first = send("k1", json!({ "task_id": "t" })).await;
    let again = send("k1", json!({ "task_id": "t" })).await;
    assert_eq!((first.status, again.status), (201, 201));
    assert_eq!((&first.json["id"], fake.count()), (&again.json["id"], 2));
    let other = send("k1", json!({ "task_id": "u" })).await;
    assert_eq!((other.status, &other.json["error_code"]), (409, &json!("idempotency_request_mismatch")));
    let attempt = json!({ "agent_id": "a", "task_id": "t", "attempt": 1 });
    let one = create(&server.client, attempt.clone()).await;
    assert_eq!(create(&server.client, attempt).await["id"], one["id"]);
    assert_ne!(create(&server.client, json!({ "agent_id": "a", "task_id": "t", "attempt": 2 })).await["id"], one["id"]);
    // A key whose create failed may be used again.
    fake.create_broken.store(true, Ordering::Relaxed);
    assert_eq!(send("k2", json!({})).await.status, 500);
    fake.create_broken.store(false, Ordering::Relaxed);
    assert_eq!(send("k2", json!({})).await.status, 201);
}

/// "Error handling prevents zombie sandboxes": a lost response leaves neither a sandbox nor a pending row.
#[tokio::test]
async fn a_create_whose_answer_is_lost_leaves_nothing() {
    let (server, fake) = start().await;
    fake.create_reply_lost.store(true, Ordering::Relaxed);
    assert_eq!(server.client.post("/api/v1/sandboxes", json!({})).await.status, 500);
    assert_eq!(fake.count(), 0);
    let rows = server.client.get("/api/v1/sandboxes?include_ended=true").await.json;
    let row = &rows["sandboxes"][0];
    assert_eq!((&row["status"], &row["reason"]), (&json!("error"), &json!("create_failed: internal")));
    assert_eq!(server.client.get("/api/v1/sandboxes").await.json["sandboxes"], json!([]));
}

/// Crashed sandboxes are found and reported. Unrecorded ones are removed.
#[tokio::test]
async fn crashed_sandboxes_become_errors_and_strays_are_removed() {
    let (server, fake) = start_with(|config| config.service.check_every = Duration::from_millis(50)).await;
    let made = create(&server.client, json!({ "agent_id": "a1", "task_id": "t1" })).await;
    let (id, inner) = (made["id"].as_str().unwrap(), made["sandbox_id"].as_str().unwrap());
    let other = create(&server.client, json!({})).await;
    let label = fake.specs.lock().unwrap()[0].metadata["isopod.service"].clone();
    fake.stray([("isopod.service".to_owned(), label)].into());
    let foreign = fake.stray([("isopod.service".to_owned(), "another-server".to_owned())].into());
    fake.lose(inner);
    until("the crash is seen", || async {
        let rows = server.client.get("/api/v1/sandboxes?status=error").await.json;
        rows["sandboxes"][0]["id"] == id && rows["sandboxes"][0]["reason"] == "lost"
    })
    .await;
    until("the stray is gone", || async { fake.count() == 2 }).await;
    assert!(fake.sandboxes.lock().unwrap().contains_key(&foreign), "another server's sandbox was removed");
    assert_eq!(status_of(&server.client, other["id"].as_str().unwrap()).await, "running");
    let audit = server.client.get("/api/v1/audit?action=sandbox.ended").await.json;
    assert_eq!((&audit["lines"][0]["actor"], &audit["lines"][0]["code"]), (&json!("isopod"), &json!("lost")));
}

/// Sandboxes older than the limit are removed. A create does not stay in progress forever.
#[tokio::test]
async fn stale_sandboxes_and_unfinished_creates_are_ended() {
    let (mut server, fake) = start_with(|config| {
        config.service.check_every = Duration::from_millis(50);
        config.service.reap_every = Duration::from_millis(50);
        config.service.stale_after = Duration::from_secs(2);
    })
    .await;
    let made = create(&server.client, json!({ "timeout": 1 })).await;
    let id = made["id"].as_str().unwrap().to_owned();
    until("it is reaped", || async { fake.count() == 0 }).await;
    until("its row says so", || async {
        server.client.get(&format!("/api/v1/sandboxes/{id}")).await.json["reason"] == "stale"
    })
    .await;
    // The server dies in the middle of a create.
    fake.create_takes_ms.store(60_000, Ordering::Relaxed);
    let client = server.client.clone();
    let asking = tokio::spawn(async move {
        client.call(Method::POST, "/api/v1/sandboxes", &[("idempotency-key", "k")], Some(json!({}))).await
    });
    until("the create has begun", || async { fake.creates.load(Ordering::Relaxed) == 2 }).await;
    server.crash().await;
    let _ = asking.await;
    fake.create_takes_ms.store(0, Ordering::Relaxed);
    let server = server.start_again().await;
    until("the row is ended", || async {
        let rows = server.client.get("/api/v1/sandboxes?status=error").await.json;
        rows["sandboxes"][0]["reason"] == "create_interrupted"
    })
    .await;
    let again =
        server.client.call(Method::POST, "/api/v1/sandboxes", &[("idempotency-key", "k")], Some(json!({}))).await;
    assert_eq!(again.status, 201, "the name of a dead create is still taken: {again:?}");
}

/// Quotas per team, agent and task; 429 says what was exceeded. Racing callers cannot exceed it together.
#[tokio::test]
async fn quotas_are_kept_and_named() {
    let (server, fake) = start_with(|config| {
        config.service.quotas.team = QuotaLimits { memory_mib: Some(6 * 1024), ..QuotaLimits::default() };
        config.service.quotas.agent = QuotaLimits { concurrent: Some(2), ..QuotaLimits::default() };
        config.service.quotas.task = QuotaLimits { per_hour: Some(3), ..QuotaLimits::default() };
    })
    .await;
    let calls = (0..10).map(|_| server.client.post("/api/v1/sandboxes", json!({ "agent_id": "a" })));
    let answers = futures::future::join_all(calls).await;
    let made: Vec<_> = answers.iter().filter(|answer| answer.status == 201).collect();
    assert_eq!((made.len(), fake.count()), (2, 2));
    let refused = answers.iter().find(|answer| answer.status == 429).unwrap();
    assert_eq!(refused.json["error_code"], "quota_exceeded");
    assert_eq!(refused.json["details"], json!({ "owner": "agent", "what": "concurrent", "limit": 2, "used": 2 }));
    // A paused one releases its slot, and needs one to resume.
    let first = made[0].json["id"].as_str().unwrap();
    assert_eq!(
        server.client.post(&format!("/api/v1/sandboxes/{first}/pause"), json!({})).await.json["status"],
        "paused"
    );
    create(&server.client, json!({ "agent_id": "a" })).await;
    assert_eq!(server.client.post(&format!("/api/v1/sandboxes/{first}/resume"), json!({})).await.status, 429);
    for expected in [201, 201, 201, 429] {
        let answer = server.client.post("/api/v1/sandboxes", json!({ "task_id": "t" })).await;
        assert_eq!(answer.status, expected, "{answer:?}");
        if expected == 429 {
            assert_eq!(
                (&answer.json["details"]["owner"], &answer.json["details"]["what"]),
                (&json!("task"), &json!("per_hour"))
            );
        }
    }
    create(&server.client, json!({})).await;
    let full = server.client.post("/api/v1/sandboxes", json!({})).await;
    assert_eq!((full.status, &full.json["details"]["what"]), (429, &json!("memory_mib")));
    let other = server.other_team().await;
    create(&other, json!({ "agent_id": "a" })).await;
}

/// Of concurrent resumes, as many succeed as the quota allows.
#[tokio::test]
async fn who_resumes_together_cannot_exceed_a_quota_together() {
    let (server, fake) = start_with(|config| {
        config.service.quotas.agent = QuotaLimits { concurrent: Some(1), ..QuotaLimits::default() };
    })
    .await;
    let mut paused = Vec::new();
    for _ in 0..5 {
        let id = create(&server.client, json!({ "agent_id": "a" })).await["id"].as_str().unwrap().to_owned();
        assert_eq!(server.client.post(&format!("/api/v1/sandboxes/{id}/pause"), json!({})).await.status, 200);
        paused.push(id);
    }
    fake.resume_takes_ms.store(300, Ordering::Relaxed);
    let resume = |id: &String| {
        let (client, path) = (server.client.clone(), format!("/api/v1/sandboxes/{id}/resume"));
        async move { client.post(&path, json!({})).await }
    };
    let answers = futures::future::join_all(paused.iter().map(resume)).await;
    let mut statuses: Vec<_> = answers.iter().map(|answer| answer.status).collect();
    statuses.sort_unstable();
    assert_eq!(statuses, [200, 429, 429, 429, 429]);
    let refused = answers.iter().find(|answer| answer.status == 429).unwrap();
    assert_eq!(refused.json["details"], json!({ "owner": "agent", "what": "concurrent", "limit": 1, "used": 1 }));
    // One that fails to resume releases its slot.
    let running = paused.iter().zip(&answers).find(|(_, answer)| answer.status == 200).unwrap().0;
    server.client.post(&format!("/api/v1/sandboxes/{running}/pause"), json!({})).await;
    fake.is_down.store(true, Ordering::Relaxed);
    assert_eq!(resume(&paused[0]).await.status, 503);
    fake.is_down.store(false, Ordering::Relaxed);
    assert_eq!(status_of(&server.client, &paused[0]).await, "paused");
    until("the backend is asked again", || async { resume(&paused[1]).await.status == 200 }).await;
}

/// An agent's key acts for its agent, whatever names another agent has used before.
#[tokio::test]
async fn an_agents_key_reaches_no_other_agent_by_names_of_requests_or_tasks() {
    let (server, fake) = start().await;
    let first = server.key_of(Scope::Agent("a1".to_owned())).await;
    let rival = server.key_of(Scope::Agent("a2".to_owned())).await;
    let named = |client: &Client| {
        let client = client.clone();
        async move {
            let headers = [("idempotency-key", "the-same")];
            client.call(Method::POST, "/api/v1/sandboxes", &headers, Some(json!({}))).await
        }
    };
    let (mine, theirs, again) = (named(&first).await, named(&rival).await, named(&first).await);
    assert_eq!((mine.status, theirs.status, again.status), (201, 201, 201), "{theirs:?}");
    assert_eq!((&mine.json["agent_id"], &theirs.json["agent_id"]), (&json!("a1"), &json!("a2")));
    assert_eq!(mine.json["id"], again.json["id"]);
    assert_ne!(mine.json["id"], theirs.json["id"]);
    // Nor the other way round: a team's key that created one for another agent.
    let made = server.client.call(
        Method::POST,
        "/api/v1/sandboxes",
        &[("idempotency-key", "teams")],
        Some(json!({ "agent_id": "a1" })),
    );
    assert_eq!(made.await.status, 201);
    let taken = rival.call(Method::POST, "/api/v1/sandboxes", &[("idempotency-key", "teams")], Some(json!({}))).await;
    assert_eq!((taken.status, &taken.json["agent_id"]), (201, &json!("a2")));

    // A task of the rival with the name that the first put on its own sandbox.
    let labelled = create(&first, json!({ "task_id": "t" })).await;
    let id = labelled["id"].as_str().unwrap();
    assert_eq!(rival.post("/api/v1/tasks", json!({ "id": "t", "title": "mine" })).await.status, 201);
    let own = create(&rival, json!({ "task_id": "t" })).await;
    let before = fake.count();
    assert_eq!(rival.post("/api/v1/tasks/t/finish", json!({})).await.status, 200);
    assert_eq!(status_of(&first, id).await, "running", "what is another agent's stays");
    assert_eq!(status_of(&rival, own["id"].as_str().unwrap()).await, "stopped");
    assert_eq!(fake.count(), before - 1);
    // And the first cannot use what belongs to the rival.
    assert_eq!(rival.post("/api/v1/tasks", json!({ "id": "u", "title": "mine" })).await.status, 201);
    let used = first.post("/api/v1/sandboxes", json!({ "task_id": "u" })).await;
    assert_eq!(used.status, 403, "{used:?}");
    server.client.post("/api/v1/agents", json!({ "id": "a1", "name": "Ada" })).await;
    let taken = first.post("/api/v1/agents/a1/start-task", json!({ "task_id": "u" })).await;
    assert_eq!(taken.status, 403, "{taken:?}");
    let task = rival.get("/api/v1/tasks/u").await.json;
    assert_eq!((&task["status"], &task["assigned_agent_id"]), (&json!("pending"), &json!("a2")));
}

/// A team's id is the name of its directories.
#[tokio::test]
async fn ids_of_teams_are_plain_names() {
    let (server, _) = start().await;
    let admin = server.key_of(Scope::Admin).await;
    for bad in [".", "..", "...", ".library", "%2e%2e", "-x", ":x"] {
        let answer = admin.put(&format!("/api/v1/teams/{bad}"), json!({ "name": "x" })).await;
        assert_eq!(answer.status, 400, "{bad} {answer:?}");
    }
    assert_eq!(admin.put("/api/v1/teams/a.b:c@d", json!({ "name": "x" })).await.status, 200);
}

/// Ownership is checked on every verb, by team and by agent; read-only keys change nothing; admins see all.
#[tokio::test]
async fn every_verb_checks_who_owns_the_sandbox() {
    let (server, fake) = start().await;
    let made = create(&server.client, json!({ "agent_id": "a1" })).await;
    let id = made["id"].as_str().unwrap();
    let execute = server.client.post(&format!("/api/v1/sandboxes/{id}/execute"), json!({ "command": "echo x" })).await;
    let command = execute.json["id"].as_str().unwrap();
    let (others, own, rival, reader) = (
        server.other_team().await,
        server.key_of(Scope::Agent("a1".to_owned())).await,
        server.key_of(Scope::Agent("a2".to_owned())).await,
        server.key_of(Scope::ReadOnly).await,
    );
    let git = |extra: Value| {
        let mut body = json!({ "sandbox_id": id });
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        Some(body)
    };
    let changes = [
        (Method::POST, format!("/api/v1/sandboxes/{id}/execute"), Some(json!({ "command": "echo x" }))),
        (Method::POST, format!("/api/v1/sandboxes/{id}/execute/stream"), Some(json!({ "command": "echo x" }))),
        (Method::POST, format!("/api/v1/sandboxes/{id}/pause"), Some(json!({}))),
        (Method::POST, format!("/api/v1/sandboxes/{id}/resume"), Some(json!({}))),
        (Method::PUT, format!("/api/v1/sandboxes/{id}/files?path=/x"), Some(json!("contents"))),
        (Method::POST, "/api/v1/git/clone".to_owned(), git(json!({ "repo_url": "https://h/x" }))),
        (Method::POST, "/api/v1/git/branch".to_owned(), git(json!({ "name": "b" }))),
        (Method::POST, "/api/v1/git/commit".to_owned(), git(json!({ "message": "fix: x" }))),
        (Method::POST, "/api/v1/git/push".to_owned(), git(json!({}))),
        (Method::DELETE, format!("/api/v1/sandboxes/{id}"), None),
    ];
    let looks = [
        format!("/api/v1/sandboxes/{id}"),
        format!("/api/v1/sandboxes/{id}/files?path=/x"),
        format!("/api/v1/commands/{command}"),
        format!("/api/v1/git/{id}/history"),
    ];
    let before = fake.commands.lock().unwrap().len();
    for (method, path, body) in &changes {
        let asked = async |client: &Client| client.call(method.clone(), path, &[], body.clone()).await;
        assert_eq!(asked(&others).await.status, 404, "another team: {method} {path}");
        let theirs = asked(&rival).await;
        assert_eq!((theirs.status, &theirs.json["error_code"]), (403, &json!("not_owner")), "{method} {path}");
        let looking = asked(&reader).await;
        assert_eq!((looking.status, &looking.json["error_code"]), (403, &json!("scope_forbids")), "{method} {path}");
    }
    for path in &looks {
        assert_eq!(others.get(path).await.status, 404, "{path}");
        assert_eq!(rival.get(path).await.status, 403, "{path}");
    }
    assert_eq!((fake.commands.lock().unwrap().len(), fake.count()), (before, 1), "something was done");
    assert_eq!(reader.get(&looks[0]).await.status, 200);
    assert_eq!(own.get(&looks[0]).await.json["agent_id"], "a1");
    assert_eq!(own.post(&changes[0].1, json!({ "command": "echo y" })).await.status, 200);
    // Limited keys are for the service only, because E2B's responses contain the tokens of sandboxes.
    for key in [&own, &reader] {
        assert_eq!(key.get("/v2/sandboxes").await.json["error_code"], "scope_forbids");
        assert_eq!(key.post("/api-keys", json!({ "name": "more" })).await.status, 403);
    }
    // An agent's key creates and lists what belongs to its agent.
    assert_eq!(rival.post("/api/v1/sandboxes", json!({ "agent_id": "a1" })).await.status, 403);
    assert_eq!(create(&rival, json!({})).await["agent_id"], "a2");
    assert_eq!(rival.get("/api/v1/sandboxes").await.json["sandboxes"].as_array().unwrap().len(), 1);
    assert_eq!(rival.get("/api/v1/sandboxes?agent_id=a1").await.status, 403);
    create(&others, json!({})).await;
    assert_eq!(server.client.get("/api/v1/sandboxes").await.json["sandboxes"].as_array().unwrap().len(), 2);
    // An admin sees all active ones, and may filter.
    let admin = server.key_of(Scope::Admin).await;
    assert_eq!(admin.get("/api/v1/sandboxes").await.json["sandboxes"].as_array().unwrap().len(), 3);
    assert_eq!(admin.get("/api/v1/sandboxes?agent_id=a2").await.json["sandboxes"].as_array().unwrap().len(), 1);
    assert_eq!(admin.get("/api/v1/sandboxes?limit=2").await.json["next"].as_str().map(str::is_empty), Some(false));
}

/// Keys expire, are rotated with an overlap, and a team's key cannot create or rotate an admin's.
#[tokio::test]
async fn keys_have_scopes_ends_and_successors() {
    let (server, _) = start().await;
    let made = server.client.post("/api-keys", json!({ "name": "ci", "scope": "read_only", "expiresIn": 3600 })).await;
    assert_eq!((made.status, &made.json["scope"]), (201, &json!("read_only")));
    assert!(made.json["expiresAt"].is_string());
    let reader = Client::new(server.address, made.json["key"].as_str().unwrap());
    assert_eq!(reader.get("/api/v1/sandboxes").await.status, 200);
    let id = made.json["id"].as_str().unwrap();
    let next = server.client.post(&format!("/api-keys/{id}/rotate"), json!({ "overlap": 60 })).await;
    assert_eq!((next.status, &next.json["scope"]), (201, &json!("read_only")));
    let successor = Client::new(server.address, next.json["key"].as_str().unwrap());
    assert_eq!((reader.get("/api/v1/tasks").await.status, successor.get("/api/v1/tasks").await.status), (200, 200));
    assert!(server.metrics().await.contains("isopod_api_keys_expiring 2"), "two keys end soon");
    assert_eq!(server.client.post(&format!("/api-keys/{id}/rotate"), json!({ "overlap": 0 })).await.status, 201);
    assert_eq!(reader.get("/api/v1/tasks").await.status, 401);
    let agents = server.client.post("/api-keys", json!({ "name": "a", "scope": "agent", "agentId": "a1" })).await;
    let path = format!("/api-keys/{}/rotate", agents.json["id"].as_str().unwrap());
    assert_eq!(server.client.post(&path, json!({})).await.json["agentId"], "a1", "as all other routes call it");
    let admin = server.key_of(Scope::Admin).await;
    let admins = admin.get("/api-keys").await.json;
    let admins_id = admins.as_array().unwrap().iter().find(|key| key["scope"] == "admin").unwrap()["id"].clone();
    let path = format!("/api-keys/{}", admins_id.as_str().unwrap());
    assert_eq!(server.client.post(&format!("{path}/rotate"), json!({})).await.status, 403);
    assert_eq!(server.client.delete(&path).await.status, 403);
    assert_eq!(server.client.post("/api-keys", json!({ "name": "x", "scope": "admin" })).await.status, 403);
    for bad in [json!({ "name": "x", "scope": "root" }), json!({ "name": "x", "scope": "agent" })] {
        assert_eq!(server.client.post("/api-keys", bad.clone()).await.status, 400, "{bad}");
    }
}

fn token(claims: &Value) -> String {
    use base64::Engine as _;
    let encode = |text: String| base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(text);
    let signed = format!("{}.{}", encode(json!({ "alg": "HS256" }).to_string()), encode(claims.to_string()));
    let key = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, b"the identity service's secret");
    let signature = ring::hmac::sign(&key, signed.as_bytes());
    format!("{signed}.{}", base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(signature))
}

/// A team id and a verified token replace a key, on E2B's own routes too. Membership is checked, and the body does not
/// affect who the caller is.
#[tokio::test]
async fn a_persons_token_counts_for_the_teams_that_the_person_belongs_to() {
    let (server, _) = start_with(|config| {
        config.control.team_tokens = Some(isopod_control::TeamTokens {
            key: isopod_control::TokenKey::Secret(isopod_wire::node::Secret(
                "the identity service's secret".to_owned(),
            )),
            issuer: None,
            audience: None,
        });
    })
    .await;
    let admin = server.key_of(Scope::Admin).await;
    for team in ["t1", "t2"] {
        let made = admin.put(&format!("/api/v1/teams/{team}"), json!({ "name": team })).await;
        assert_eq!(made.status, 200, "{made:?}");
    }
    let claims = json!({ "sub": "u1", "exp": 9_999_999_999_i64, "app_metadata": { "teams": ["t1", "t9"] } });
    let good = token(&claims);
    let ask = async |team: &str, token: &str, method: Method, path: &str, body: Value| {
        let mut headers = vec![("x-supabase-team", team), ("x-supabase-token", token)];
        headers.push(("content-type", "application/json"));
        server.client.raw(method, path, &headers, body.to_string().into()).await
    };
    let body = json!({ "templateID": "base", "metadata": { "userID": "someone", "teamID": "t2" } });
    let made = ask("t1", &good, Method::POST, "/v2/sandboxes", body).await;
    assert_eq!(made.status, 201, "{made:?}");
    let listed = ask("t1", &good, Method::GET, "/v2/sandboxes?metadata=userID%3Dsomeone", json!(null)).await;
    assert_eq!(listed.json.as_array().unwrap().len(), 1);
    assert_eq!(server.client.get("/v2/sandboxes").await.json, json!([]), "it belongs to the first team");
    // As the bearer, a token needs no team beside it if it names only one.
    for (teams, status) in [(json!(["t1"]), 200), (json!(["t1", "t2"]), 403), (json!(["t9"]), 403), (json!([]), 403)] {
        let claims = json!({ "sub": "u1", "exp": 9_999_999_999_i64, "app_metadata": { "teams": teams } });
        let bearer = format!("Bearer {}", token(&claims));
        let headers = [("authorization", bearer.as_str())];
        let answer = server.client.raw(Method::GET, "/v2/sandboxes", &headers, bytes::Bytes::new()).await;
        assert_eq!(answer.status, status, "{teams} {answer:?}");
        assert_eq!(answer.json.as_array().map(Vec::len), (status == 200).then_some(1), "{teams}");
    }
    for (team, token, status, code) in [
        ("t2", good.as_str(), 403, "not_a_member"),
        ("t9", good.as_str(), 403, "not_a_member"),
        ("", good.as_str(), 403, "not_a_member"),
        ("t1", "a.b.c", 401, "invalid_token"),
        ("t1", &good[..good.len() - 2], 401, "invalid_token"),
    ] {
        let answer = ask(team, token, Method::GET, "/api/v1/sandboxes", json!(null)).await;
        assert_eq!((answer.status, answer.json["error_code"].as_str()), (status, Some(code)), "{team:?}");
    }
    assert_eq!(admin.put("/api/v1/teams/t2/members/u1", json!({})).await.status, 204);
    assert_eq!(ask("t2", &good, Method::GET, "/api/v1/sandboxes", json!(null)).await.status, 200);
    let line = admin.get("/api/v1/audit?action=sandbox.list&limit=1").await.json["lines"][0].clone();
    assert_eq!((&line["actor"], &line["team"]), (&json!("user:u1"), &json!("t2")));
    assert_eq!(admin.delete("/api/v1/teams/t2/members/u1").await.status, 204);
    assert_eq!(ask("t2", &good, Method::GET, "/api/v1/sandboxes", json!(null)).await.status, 403);
    assert_eq!(server.client.put("/api/v1/teams/t3", json!({ "name": "x" })).await.status, 403);
}

/// The service also sees what was created through E2B's own API, without agent and task.
#[tokio::test]
async fn sandboxes_of_plain_sdk_clients_are_known_here() {
    let server = Server::start().await;
    let id = server.create(json!({ "metadata": { "a": "b" } })).await;
    let seen = server.client.get(&format!("/api/v1/sandboxes/{id}")).await;
    assert_eq!((seen.status, &seen.json["status"], &seen.json["agent_id"]), (200, &json!("running"), &json!(null)));
    assert_eq!(server.other_team().await.get(&format!("/api/v1/sandboxes/{id}")).await.status, 404);
    assert_eq!(server.client.delete(&format!("/api/v1/sandboxes/{id}")).await.status, 204);
    assert_eq!(server.node.count(), 0);
    // And the other way round: E2B's API sees the service's sandboxes.
    let made =
        create(&server.client, json!({ "agent_id": "a", "limits": { "memory_mb": 256, "cpu_millis": 500 } })).await;
    let inner = made["sandbox_id"].as_str().unwrap();
    assert_eq!(server.client.get(&format!("/sandboxes/{inner}")).await.json["metadata"]["agent_id"], "a");
    // Limits per sandbox reach the node.
    let spec = server.node.spec_of(inner).unwrap();
    assert_eq!((spec.limits.memory.as_mib(), spec.limits.cpu_millis), (256, 500));
    server.node.die(inner, isopod_wire::node::EndReason::OutOfMemory);
    let id = made["id"].as_str().unwrap();
    until("the reason is known", || async {
        let row = server.client.get(&format!("/api/v1/sandboxes/{id}")).await.json;
        row["status"] == "error" && row["reason"] == "out_of_memory"
    })
    .await;
}

/// Every operation has a line: who, what, on which sandbox, from where, with what result; the chain is valid.
#[tokio::test]
async fn every_operation_is_in_the_audit_before_its_answer() {
    let (server, _) = start().await;
    let made = create(&server.client, json!({ "agent_id": "a1", "task_id": "t1" })).await;
    let id = made["id"].as_str().unwrap();
    server.client.post(&format!("/api/v1/sandboxes/{id}/execute"), json!({ "command": "echo hi" })).await;
    server.client.get("/api/v1/sandboxes/inobody").await;
    server.client.delete(&format!("/api/v1/sandboxes/{id}")).await;
    let lines = server.client.get("/api/v1/audit").await.json["lines"].clone();
    let lines: Vec<_> = lines.as_array().unwrap().iter().rev().collect();
    let actions: Vec<_> = lines.iter().map(|line| line["action"].as_str().unwrap()).collect();
    assert_eq!(actions, ["sandbox.create", "sandbox.execute", "sandbox.get", "sandbox.destroy"]);
    assert!(lines[0]["actor"].as_str().unwrap().starts_with("key:"));
    assert_eq!((&lines[0]["sandbox"], &lines[0]["agent"], &lines[0]["task"]), (&json!(id), &json!("a1"), &json!("t1")));
    assert_eq!((&lines[0]["source"], &lines[0]["status"]), (&json!("127.0.0.1"), &json!(201)));
    assert_eq!((&lines[2]["status"], &lines[2]["code"]), (&json!(404), &json!("sandbox_not_found")));
    assert!(lines[1]["micros"].as_i64().unwrap() > 0);
    // Another team sees nothing of it. Only an admin gets the whole chain.
    assert_eq!(server.other_team().await.get("/api/v1/audit").await.json["lines"], json!([]));
    assert_eq!(server.client.get("/api/v1/audit/export").await.status, 403);
    let admin = server.key_of(Scope::Admin).await;
    let exported = admin.get("/api/v1/audit/export").await.text;
    let last: Value = serde_json::from_str(exported.lines().last().unwrap()).unwrap();
    let verified = admin.get("/api/v1/audit/verify").await.json;
    assert_eq!(verified["broken_at"], json!(null));
    assert_eq!(verified["lines"], last["number"], "an export holds the line that tells of it");
    assert_eq!(verified["head"], last["hash"]);
    assert_eq!(exported.lines().count() as i64, last["number"].as_i64().unwrap());
}

/// If a client hangs up in the middle, the operation is still audited and recorded.
#[tokio::test]
async fn a_client_that_goes_away_is_audited_all_the_same() {
    use tokio::io::AsyncWriteExt as _;
    let (server, fake) = start().await;
    fake.create_takes_ms.store(200, Ordering::Relaxed);
    let mut stream = tokio::net::TcpStream::connect(server.address).await.unwrap();
    let head = format!(
        "POST /api/v1/sandboxes HTTP/1.1\r\nhost: localhost\r\nx-api-key: {}\r\ncontent-length: 2\r\n\r\n{{}}",
        server.client.key
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    until("the create has begun", || async { fake.creates.load(Ordering::Relaxed) == 1 }).await;
    drop(stream);
    until("the line is there", || async {
        let lines = server.client.get("/api/v1/audit?action=sandbox.create").await.json["lines"].clone();
        lines[0]["status"] == 201 && lines[0]["sandbox"].is_string()
    })
    .await;
    // The client did not learn of it, so it is removed.
    until("it has ended", || async {
        let rows = server.client.get("/api/v1/sandboxes?include_ended=true").await.json;
        rows["sandboxes"][0]["reason"] == "client_gone"
    })
    .await;
}

/// No response without its line: killed at any moment, the chain is valid and has a line for every response that was
/// sent.
#[tokio::test]
async fn a_killed_server_has_lost_no_line_that_somebody_has_an_answer_for() {
    let (mut server, _) = start().await;
    let clients = (0..8).map(|_| {
        let client = server.client.clone();
        tokio::spawn(async move {
            let mut answered = 0;
            for _ in 0..25 {
                answered += usize::from(client.get("/api/v1/tasks").await.status == 200);
            }
            answered
        })
    });
    let answered: usize = futures::future::join_all(clients).await.into_iter().map(Result::unwrap).sum();
    server.crash().await;
    let server = server.start_again().await;
    let store = server.store();
    let chain = store.audit_chains().await.unwrap().remove(0);
    let verified = store.verify_audit(&chain.server).await.unwrap();
    assert_eq!((answered, verified.lines, verified.broken_at), (200, 200, None));
}

/// An agent takes a task and gets a sandbox. However the task ends, the sandbox is removed.
#[tokio::test]
async fn a_task_has_its_sandbox_until_it_ends() {
    let (server, fake) = start().await;
    let client = &server.client;
    let agent = client.post("/api/v1/agents", json!({ "id": "a1", "name": "Ada", "role": "coder" })).await;
    assert_eq!((agent.status, &agent.json["status"]), (201, &json!("idle")));
    assert_eq!(client.post("/api/v1/agents", json!({ "id": "a1", "name": "Ada" })).await.status, 409);
    for (number, end, status) in [(1, "finish", "completed"), (2, "fail", "failed"), (3, "cancel", "cancelled")] {
        let task = format!("t{number}");
        let made = client.post("/api/v1/tasks", json!({ "id": task, "title": "do it" })).await;
        assert_eq!(
            (made.status, &made.json["status"], &made.json["priority"]),
            (201, &json!("pending"), &json!("medium"))
        );
        let begun = client.post("/api/v1/agents/a1/start-task", json!({ "task_id": task })).await;
        assert_eq!(begun.status, 201, "{begun:?}");
        assert_eq!(begun.json["task"]["status"], "in_progress");
        let sandbox = begun.json["sandbox"]["id"].as_str().unwrap();
        assert_eq!(
            (&begun.json["sandbox"]["agent_id"], &begun.json["sandbox"]["task_id"]),
            (&json!("a1"), &json!(task))
        );
        let busy = client.get("/api/v1/agents/a1").await.json;
        assert_eq!(
            (&busy["status"], &busy["current_task_id"], &busy["sandbox_id"]),
            (&json!("working"), &json!(task), &json!(sandbox))
        );
        assert_eq!(
            client.post("/api/v1/agents/a1/start-task", json!({ "task_id": task })).await.json["error_code"],
            "agent_busy"
        );
        let ended = client.post(&format!("/api/v1/tasks/{task}/{end}"), json!({})).await;
        assert_eq!((ended.status, &ended.json["status"]), (200, &json!(status)));
        assert!(ended.json["completed_at"].is_string());
        assert_eq!(fake.count(), 0);
        assert_eq!(status_of(client, sandbox).await, "stopped");
        assert_eq!(client.get("/api/v1/agents/a1").await.json["status"], "idle");
        assert_eq!(client.post(&format!("/api/v1/tasks/{task}/{end}"), json!({})).await.status, 200, "ending twice");
        assert_eq!(client.post("/api/v1/agents/a1/start-task", json!({ "task_id": task })).await.status, 409);
    }
    // If no sandbox is available, the task and the agent stay as they were.
    client.post("/api/v1/tasks", json!({ "id": "t4", "title": "later" })).await;
    fake.create_broken.store(true, Ordering::Relaxed);
    assert_eq!(client.post("/api/v1/agents/a1/start-task", json!({ "task_id": "t4" })).await.status, 500);
    assert_eq!(client.get("/api/v1/tasks/t4").await.json["status"], "pending");
    assert_eq!(client.get("/api/v1/agents/a1").await.json["current_task_id"], json!(null));
    assert_eq!(client.get("/api/v1/tasks?status=completed").await.json["tasks"].as_array().unwrap().len(), 1);
    assert_eq!(client.delete("/api/v1/agents/a1").await.status, 204);
}

/// Files are transferred unchanged. A missing one is an error.
#[tokio::test]
async fn files_go_in_and_out_as_they_are() {
    let (server, fake) = start().await;
    let made = create(&server.client, json!({ "task_id": "t" })).await;
    let id = made["id"].as_str().unwrap();
    let path = format!("/api/v1/sandboxes/{id}/files?path=/home/user/x.bin");
    // Every byte and every end of a piece, so most of it is not UTF-8.
    let bytes: Vec<u8> = (0..=255).cycle().take(300_000).collect();
    let headers = [("x-api-key", server.client.key.as_str())];
    let put = server.client.raw(Method::PUT, &path, &headers, bytes.clone().into()).await;
    assert_eq!((put.status, &put.json["size"]), (200, &json!(300_000)));
    let got = server.client.open(Method::GET, &path, &headers, "".into()).await;
    assert_eq!((got.status().as_u16(), got.headers()["content-length"].to_str().unwrap()), (200, "300000"));
    let received = got.into_body().collect().await.unwrap().to_bytes();
    assert!(received == bytes, "what came back is not what went in");
    let stored = fake.files.lock().unwrap().values().cloned().collect::<Vec<_>>();
    assert!(stored == [bytes], "what the sandbox has is not what went in");
    let missing = server.client.get(&format!("/api/v1/sandboxes/{id}/files?path=/nowhere")).await;
    assert_eq!((missing.status, &missing.json["error_code"]), (404, &json!("not_found")));
    assert_eq!(server.client.get(&format!("/api/v1/sandboxes/{id}/files")).await.status, 400);
    let usage = server.client.get("/api/v1/usage?group_by=task").await.json;
    assert_eq!(usage["usage"][0]["task_id"], "t");
    assert_eq!((&usage["usage"][0]["bytes_in"], &usage["usage"][0]["bytes_out"]), (&json!(300_000), &json!(300_000)));
}

/// A rule about commands is applied after the line was parsed like a shell, and refusals are audited.
#[tokio::test]
async fn commands_outside_the_rules_are_refused_and_audited() {
    let (server, fake) = start_with(|config| {
        config.service.policy = CommandPolicy { allow: vec!["echo".to_owned(), "git".to_owned()], deny: Vec::new() };
    })
    .await;
    let made = create(&server.client, json!({})).await;
    let path = format!("/api/v1/sandboxes/{}/execute", made["id"].as_str().unwrap());
    for bad in [json!({ "command": "echo x; rm y" }), json!({ "argv": ["rm"] }), json!({ "command": "echo $(rm)" })] {
        let answer = server.client.post(&path, bad.clone()).await;
        assert_eq!((answer.status, &answer.json["error_code"]), (403, &json!("command_refused")), "{bad}");
    }
    assert!(fake.commands.lock().unwrap().is_empty());
    assert_eq!(server.client.post(&path, json!({ "command": "echo 'rm; y'" })).await.status, 200);
    let audit = server.client.get("/api/v1/audit?action=sandbox.execute&limit=4").await.json;
    assert_eq!(audit["lines"][3]["code"], "command_refused");
}

/// Events of an agent arrive in order, missed ones are sent again, and a running command can be followed.
#[tokio::test]
async fn events_are_followed_live_and_after_the_fact() {
    let (server, _) = start().await;
    let made = create(&server.client, json!({ "agent_id": "a1" })).await;
    let id = made["id"].as_str().unwrap();
    let path = format!("/api/v1/sandboxes/{id}/execute/stream");
    let streamed = server.client.post(&path, json!({ "command": "both" })).await;
    assert_eq!((streamed.status, streamed.headers["content-type"].to_str().unwrap()), (200, "text/event-stream"));
    let names: Vec<_> = streamed.text.lines().filter_map(|line| line.strip_prefix("event: ")).collect();
    assert_eq!(names, ["started", "stdout", "stderr", "end"], "{}", streamed.text);
    let broken = server.client.post(&path, json!({ "command": "break" })).await;
    assert!(broken.text.contains("event: error") && broken.text.contains("backend_unavailable"), "{}", broken.text);

    let follow = async |last: Option<&str>, until: &str| follow(&server, last, |seen| seen.contains(until)).await;
    let missed = follow(None, "err\\n").await;
    let kinds: Vec<_> = missed.lines().filter_map(|line| line.strip_prefix("event: ")).collect();
    assert_eq!(kinds[..3], ["sandbox_status", "sandbox_status", "command_output"], "{missed}");
    let ids: Vec<u64> = missed.lines().filter_map(|line| line.strip_prefix("id: ")?.parse().ok()).collect();
    assert!(ids.is_sorted());
    let first = ids[0].to_string();
    assert!(!follow(Some(&first), "err\\n").await.contains("\"creating\""), "what was seen is told again");
    let gone = format!("/api/v1/sandboxes/{id}");
    let (_, live) = tokio::join!(server.client.delete(&gone), follow(None, "\"stopped\""));
    assert!(live.contains("sandbox_status"));
}

/// Follows the events of agent a1 until what was seen is enough.
async fn follow(server: &Server, last: Option<&str>, is_enough: impl Fn(&str) -> bool) -> String {
    let mut headers = vec![("x-api-key", server.client.key.as_str())];
    headers.extend(last.map(|id| ("last-event-id", id)));
    let response = server.client.open(Method::GET, "/api/v1/sse?agent_id=a1", &headers, "".into()).await;
    let (mut body, mut text) = (response.into_body(), String::new());
    while !is_enough(&text) {
        let frame = tokio::time::timeout(Duration::from_secs(5), body.frame()).await.unwrap().unwrap().unwrap();
        text += std::str::from_utf8(frame.data_ref().unwrap()).unwrap();
    }
    text
}

/// The data of the events of one kind.
fn events_of(text: &str, kind: &str) -> Vec<Value> {
    let head = format!("event: {kind}");
    let blocks = text.split("\n\n").filter(|block| block.lines().any(|line| line == head));
    let data = blocks.filter_map(|block| block.lines().find_map(|line| line.strip_prefix("data: ")));
    data.map(|data| serde_json::from_str(data).unwrap()).collect()
}

/// Followers of an agent see what git did, also if it failed, and the pull request of the agent's task.
#[tokio::test]
async fn git_operations_and_pull_requests_are_events() {
    let (server, fake) = start().await;
    let client = &server.client;
    client.post("/api/v1/agents", json!({ "id": "a1", "name": "Ada" })).await;
    client.post("/api/v1/tasks", json!({ "id": "t1", "title": "do it" })).await;
    let begun = client.post("/api/v1/agents/a1/start-task", json!({ "task_id": "t1" })).await;
    let id = begun.json["sandbox"]["id"].as_str().unwrap();
    client.post("/api/v1/git/clone", json!({ "sandbox_id": id, "repo_url": "https://host/x.git" })).await;
    fake.push_errors.lock().unwrap().push_back("! [rejected] main -> main (fetch first)");
    assert_eq!(client.post("/api/v1/git/push", json!({ "sandbox_id": id })).await.status, 422);
    let url = "https://host/x/pull/7";
    let changed = client.call(Method::PATCH, "/api/v1/tasks/t1", &[], Some(json!({ "pull_request_url": url }))).await;
    assert_eq!((changed.status, &changed.json["pull_request_url"]), (200, &json!(url)), "{changed:?}");

    let seen = follow(&server, None, |seen| !events_of(seen, "pr_created").is_empty()).await;
    assert_eq!(events_of(&seen, "pr_created"), [json!({ "task_id": "t1", "pull_request_url": url })]);
    let operations = events_of(&seen, "git_operation");
    assert_eq!(operations.len(), 2, "{seen}");
    for (event, operation, status) in [(&operations[0], "clone", "success"), (&operations[1], "push", "failed")] {
        assert_eq!((&event["operation"], &event["status"]), (&json!(operation), &json!(status)));
        assert_eq!((&event["sandbox_id"], &event["task_id"]), (&json!(id), &json!("t1")));
    }
    assert!(operations[0]["error"].is_null() && operations[0]["commit_sha"].is_string(), "{seen}");
    assert!(operations[1]["error"].as_str().unwrap().contains("[rejected]"), "{seen}");
    assert_eq!(client.post("/api/v1/tasks/t1/finish", json!({})).await.status, 200);
}

/// A stream on which nothing happens has comments, so that proxies leave it open.
#[tokio::test]
async fn a_quiet_stream_of_events_has_a_heartbeat() {
    let (server, _) = start_with(|config| config.service.heartbeat = Duration::from_millis(50)).await;
    let is_beat = |line: &&str| line.starts_with(':') && line.contains("heartbeat");
    let seen = follow(&server, None, |seen| seen.lines().filter(is_beat).count() == 3).await;
    assert!(seen.lines().all(|line| line.is_empty() || is_beat(&line)), "{seen:?}");
}

/// `{"status":"ok"}` without a key; OpenAPI describes the service; metrics count it.
#[tokio::test]
async fn the_service_tells_about_itself() {
    let (server, _) = start().await;
    let health = server.client.raw(Method::GET, "/api/v1/health", &[], "".into()).await;
    assert_eq!((health.status, health.json), (200, json!({ "status": "ok" })));
    let made = create(&server.client, json!({})).await;
    let execute = format!("/api/v1/sandboxes/{}/execute", made["id"].as_str().unwrap());
    server.client.post(&execute, json!({ "command": "echo x" })).await;
    server.client.post(&execute, json!({ "command": "slow", "timeout": 1 })).await;
    let metrics = server.metrics().await;
    for line in [
        "isopod_service_operations_total{action=\"sandbox.create\",code=\"ok\"} 1",
        "isopod_service_operations_total{action=\"sandbox.execute\",code=\"ok\"} 2",
        "isopod_service_commands_total{outcome=\"exited\"} 1",
        "isopod_service_commands_total{outcome=\"timed_out\"} 1",
        "isopod_service_command_seconds_count 2",
        "isopod_service_create_seconds_count 1",
        "isopod_service_sandboxes{status=\"running\"} 1",
        "isopod_audit_backlog 0",
    ] {
        assert!(metrics.contains(line), "{line} is missing in {metrics}");
    }
    let document = server.client.get("/openapi.json").await.json;
    assert!(document["paths"]["/api/v1/sandboxes/{id}/execute"]["post"].is_object());
}

/// Alerts and dashboards use metrics that exist.
#[tokio::test]
async fn what_the_files_in_deploy_ask_for_is_in_the_metrics() {
    let (server, fake) = start().await;
    fake.create_broken.store(true, Ordering::Relaxed);
    server.client.post("/api/v1/sandboxes", json!({})).await;
    let metrics = server.metrics().await;
    let mut seen = 0;
    for file in ["prometheus-rules.yml", "grafana-dashboard.json"] {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy").join(file);
        let text = std::fs::read_to_string(path).unwrap();
        let word = |text: &str| text.chars().take_while(|c| c.is_ascii_lowercase() || *c == '_').collect::<String>();
        for name in text.match_indices("isopod_").map(|(at, _)| word(&text[at..])) {
            let family = name.trim_end_matches("_bucket");
            assert!(metrics.contains(&format!("# TYPE {family} ")), "{file}: {name} is not in {metrics}");
            seen += 1;
        }
    }
    assert!(seen > 20, "{seen}");
    assert!(metrics.contains("isopod_pool_sandboxes{template=\"base\",stage=\"ready\"} 1"), "{metrics}");
}

/// A push that fails is tried three times in all. One that the remote refuses is not tried again.
#[tokio::test]
async fn a_push_is_tried_again_unless_it_was_refused() {
    let (server, fake) = start_with(|config| config.service.push_wait = Duration::from_millis(1)).await;
    let made = create(&server.client, json!({ "task_id": "t" })).await;
    let body = json!({ "sandbox_id": made["id"] });
    let lost = "fatal: unable to access 'https://host/x.git/': Connection reset by peer";
    let rejected = "! [rejected] main -> main (non-fast-forward)";
    for (errors, status, tries) in [
        (vec![lost, lost], 200, 3),
        (vec![lost, lost, lost], 422, 3),
        (vec![rejected], 422, 1),
        (vec![lost, rejected], 422, 2),
    ] {
        let last = errors.last().copied().unwrap();
        let before = fake.git_calls("push").len();
        fake.push_errors.lock().unwrap().extend(errors);
        let pushed = server.client.post("/api/v1/git/push", body.clone()).await;
        assert_eq!((pushed.status, fake.git_calls("push").len() - before), (status, tries), "{last}: {pushed:?}");
        assert!(fake.push_errors.lock().unwrap().is_empty());
        if status == 422 {
            assert_eq!(pushed.json["error_code"], "git_failed");
            assert!(pushed.json["message"].as_str().unwrap().contains(last), "{pushed:?}");
        }
    }
}

/// A clone that takes too long is an error, and what it has fetched is removed.
#[tokio::test]
async fn a_clone_that_takes_too_long_is_removed() {
    let (server, fake) = start_with(|config| config.service.clone_timeout = Duration::from_millis(30)).await;
    fake.clone_hangs.store(true, Ordering::Relaxed);
    let made = create(&server.client, json!({})).await;
    let body = json!({ "sandbox_id": made["id"], "repo_url": "https://host/x.git" });
    let cloned = server.client.post("/api/v1/git/clone", body.clone()).await;
    assert_eq!((cloned.status, &cloned.json["error_code"]), (422, &json!("git_failed")), "{cloned:?}");
    assert!(cloned.json["message"].as_str().unwrap().contains("it took longer than 30ms"), "{cloned:?}");
    let place = fake.git_calls("clone")[0].rsplit(' ').next().unwrap().to_owned();
    assert!(place.starts_with("/workspace/.clone-"), "{place}");
    let last = fake.steps.lock().unwrap().last().unwrap().clone();
    assert!(last.contains("rm -rf") && last.ends_with(&place), "{last}");
    let path = format!("/api/v1/sandboxes/{}", made["id"].as_str().unwrap());
    assert_eq!(server.client.get(&path).await.json["repo_url"], json!(null));

    fake.clone_hangs.store(false, Ordering::Relaxed);
    assert_eq!(server.client.post("/api/v1/git/clone", body).await.status, 200, "it can be repeated");
    assert_eq!(server.client.get(&path).await.json["repo_url"], "https://host/x.git");
    assert_eq!(ServiceConfig::default().clone_timeout, Duration::from_secs(30));
}

/// Git runs by argv with its token in the environment. The token is in no response, record or event.
#[tokio::test]
async fn a_git_token_is_used_and_forgotten() {
    let (server, fake) = start().await;
    let made = create(&server.client, json!({ "agent_id": "a", "task_id": "t9" })).await;
    let id = made["id"].as_str().unwrap();
    let body = json!({ "sandbox_id": id, "repo_url": "https://host/x.git", "token": "ghp_verysecret" });
    let cloned = server.client.post("/api/v1/git/clone", body).await;
    assert_eq!(cloned.status, 200, "{cloned:?}");
    server.client.post("/api/v1/git/branch", json!({ "sandbox_id": id })).await;
    server.client.post("/api/v1/git/commit", json!({ "sandbox_id": id, "message": "feat: x" })).await;
    let pushed = server.client.post("/api/v1/git/push", json!({ "sandbox_id": id, "token": "ghp_verysecret" })).await;
    assert_eq!(pushed.status, 200, "{pushed:?}");
    let lines: Vec<String> = fake.commands.lock().unwrap().iter().map(|one| format!("{:?}", one.line)).collect();
    assert!(lines.iter().any(|line| line.contains("clone")) && !lines.iter().any(|line| line.contains("verysecret")));
    assert!(lines.iter().any(|line| line.contains("\"-u\"") && line.contains("origin")), "{lines:?}");
    let mut told = cloned.text + &pushed.text;
    for path in ["/api/v1/audit", "/api/v1/commands"] {
        told += &server.client.get(path).await.text;
    }
    told += &server.metrics().await;
    assert!(!told.contains("verysecret"));
    let database = server.database();
    let mut server = server;
    server.stop().await;
    for file in [database.clone(), database.with_extension("db-wal")] {
        let bytes = std::fs::read(file).unwrap_or_default();
        assert!(!bytes.windows(10).any(|window| window == b"verysecret"), "the token is in the store");
    }
}
