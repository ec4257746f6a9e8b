//! The client against an API server whose responses the test defines.
#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "tests may fail loudly and say why they were skipped")]

mod support;

use std::io;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::stream;
use isopod_client::interpreter::{CodeEvent, RunCode};
use isopod_client::sandbox::{ApiError, Client, ClientConfig, ListSandboxes, LogQuery, NewSandbox, SandboxState};
use isopod_client::{GuestError, SandboxId, TransportError};
use serde_json::{Value, json};
use support::server::{Received, Reply, Server, json as reply, silent_after, streamed, text};

fn client(server: &Server) -> Client {
    let config = ClientConfig {
        api_url: server.url.clone(),
        api_key: "e2b_key".into(),
        sandbox_url: Some(server.url.clone()),
        domain: None,
    };
    Client::new(config).unwrap()
}

fn id() -> SandboxId {
    "i1".parse().unwrap()
}

fn made() -> Value {
    json!({
        "sandboxID": "i1", "templateID": "base", "clientID": "c", "envdVersion": "0.6.13",
        "envdAccessToken": "envd-secret", "trafficAccessToken": "traffic-secret", "domain": "box.example",
    })
}

fn listed(id: &str) -> Value {
    json!({
        "sandboxID": id, "templateID": "base", "clientID": "c", "startedAt": "2026-11-15T10:00:00Z",
        "endAt": "2026-11-15T11:00:00Z", "cpuCount": 2, "memoryMB": 512, "diskSizeMB": 1, "state": "running",
        "envdVersion": "0.6.13", "metadata": {},
    })
}

fn with(mut reply: Reply, name: &'static str, value: &str) -> Reply {
    reply.headers_mut().insert(name, value.parse().unwrap());
    reply
}

fn busy() -> Reply {
    with(
        reply(503, json!({"code": 503, "message": "busy", "error_code": "sandbox_capacity_unavailable"})),
        "retry-after",
        "0",
    )
}

#[test]
fn configurations_that_cannot_work_are_refused() {
    let good = ClientConfig { api_url: "http://localhost:1".into(), api_key: "k".into(), ..ClientConfig::default() };
    assert!(Client::new(good.clone()).is_ok());
    assert!(Client::new(ClientConfig { api_url: "localhost".into(), ..good.clone() }).is_err());
    assert!(Client::new(ClientConfig { sandbox_url: Some("x".into()), ..good.clone() }).is_err());
    for key in ["", "a\nb"] {
        assert!(Client::new(ClientConfig { api_key: key.into(), ..good.clone() }).is_err());
    }
    assert!(!format!("{:?}", ClientConfig { api_key: "secret".into(), ..good }).contains("secret"));
}

#[tokio::test]
async fn refusals_have_types() {
    let server = Server::start(|_, request| match request.path.as_str() {
        "/sandboxes/i401" => reply(401, json!({"code": 401, "message": "no"})),
        "/sandboxes/i404" => reply(404, json!({"code": 404, "message": "gone"})),
        "/sandboxes/i429" => with(reply(429, json!({"code": 429, "message": "slow"})), "retry-after", "3600"),
        "/sandboxes/i500" => reply(500, json!({"code": 500, "message": "oh", "error_code": "internal_server_error"})),
        "/sandboxes/i200" => text(200, "not json"),
        _ => with(busy(), "should-retry", "false"),
    })
    .await;
    let client = client(&server);
    let ask = async |id: &str| client.info(&id.parse().unwrap()).await.unwrap_err();
    assert!(matches!(ask("i401").await, ApiError::Unauthorized { .. }));
    assert!(matches!(ask("i404").await, ApiError::NotFound { .. }));
    let slow = ask("i429").await;
    assert!(
        matches!(slow, ApiError::RateLimited { retry_after: Some(wait), .. } if wait.as_secs() == 3600),
        "{slow:?}"
    );
    let failed = ask("i500").await;
    assert!(matches!(&failed, ApiError::Server { code: 500, error_code: Some(code), message }
        if code == "internal_server_error" && message == "oh"));
    assert!(matches!(ask("i200").await, ApiError::Protocol(_)));
    let busy = ask("i503").await;
    assert!(matches!(&busy, ApiError::Unavailable { error_code: Some(code), .. }
        if code == "sandbox_capacity_unavailable"));
    assert_eq!(server.received().len(), 6);
}

#[tokio::test]
async fn a_server_that_is_not_there_is_a_transport_error() {
    let server = Server::start(|_, _| text(200, "")).await;
    let client = client(&server);
    drop(server);
    tokio::task::yield_now().await;
    let error = client.kill(&id()).await.unwrap_err();
    assert!(matches!(error, ApiError::Transport(TransportError::Connect { .. })), "{error:?}");
}

#[tokio::test]
async fn busy_servers_are_asked_again_at_most_three_times() {
    let server = Server::start(|_, _| busy()).await;
    let error = client(&server).info(&id()).await.unwrap_err();
    assert!(matches!(error, ApiError::Unavailable { .. }));
    assert_eq!(server.received().len(), 4);

    let server = Server::start(|number, _| if number < 2 { busy() } else { reply(200, listed("i1")) }).await;
    assert_eq!(client(&server).info(&id()).await.unwrap().info.state, SandboxState::Running);
}

#[tokio::test]
async fn retry_after_is_honoured() {
    let answer = |number, _: &Received| match number {
        0 => with(reply(429, json!({"code": 429, "message": "slow"})), "retry-after", "1"),
        _ => text(204, ""),
    };
    let server = Server::start(answer).await;
    let begun = Instant::now();
    client(&server).set_timeout(&id(), Duration::from_secs(9)).await.unwrap();
    assert!(begun.elapsed() >= Duration::from_secs(1));
    assert_eq!(server.received()[1].json(), json!({"timeout": 9}));
}

#[tokio::test]
async fn creates_are_repeated_only_with_a_key() {
    let server = Server::start(|number, _| if number < 2 { busy() } else { reply(201, made()) }).await;
    let client = client(&server);
    assert!(matches!(client.create(NewSandbox::new("base")).await, Err(ApiError::Unavailable { .. })));
    assert_eq!(server.received().len(), 1);
    client.create(NewSandbox::new("base").idempotency_key("run-1")).await.unwrap();
    let keys: Vec<String> = server.received().iter().map(|r| r.header("idempotency-key").to_owned()).collect();
    assert_eq!(keys, ["", "run-1", "run-1"]);
}

#[tokio::test]
async fn a_made_sandbox_is_entered_through_the_edge() {
    let server = Server::start(|_, request| match request.path.as_str() {
        "/v2/sandboxes" => reply(201, made()),
        "/health" => text(204, ""),
        other => panic!("{other}"),
    })
    .await;
    let sandbox = client(&server).create(NewSandbox::new("base").env("A", "1")).await.unwrap();
    assert_eq!(sandbox.host(3000), "3000-i1.box.example");
    assert!(sandbox.is_running().await.unwrap());
    let [create, health] = server.received().try_into().unwrap();
    assert_eq!(create.header("x-api-key"), "e2b_key");
    assert_eq!(create.json()["envVars"], json!({"A": "1"}));
    assert_eq!((create.header("e2b-sandbox-id"), health.header("e2b-sandbox-id")), ("", "i1"));
    assert_eq!((health.header("e2b-sandbox-port"), health.header("x-access-token")), ("49983", "envd-secret"));
    assert_eq!(health.header("x-api-key"), "");
    assert!(!format!("{sandbox:?}").contains("secret"));
}

#[tokio::test]
async fn a_server_of_the_first_version_is_understood() {
    let server = Server::start(|_, request| match request.path.as_str() {
        "/sandboxes" | "/sandboxes/i1/connect" => reply(201, made()),
        _ => reply(404, json!({"code": 404, "message": "no such route"})),
    })
    .await;
    let client = client(&server);
    client.create(NewSandbox::new("base")).await.unwrap();
    client.connect(&id(), Some(Duration::from_secs(60))).await.unwrap();
    let received = server.received();
    let paths: Vec<&str> = received.iter().map(|request| request.path.as_str()).collect();
    assert_eq!(paths, ["/v2/sandboxes", "/sandboxes", "/sandboxes/i1/connect"]);
    assert_eq!((&received[1].json()["secure"], &received[1].json()["timeout"]), (&json!(true), &json!(300)));
    assert_eq!(received[2].json(), json!({"timeout": 60}));
}

#[tokio::test]
async fn a_missing_template_stays_missing() {
    let server = Server::start(|_, _| reply(404, json!({"code": 404, "message": "template 'x' not found"}))).await;
    let error = client(&server).create(NewSandbox::new("x")).await.unwrap_err();
    assert_eq!((error.is_not_found(), error.to_string().as_str()), (true, "template 'x' not found"));
}

#[tokio::test]
async fn lists_go_on_until_the_last_page() {
    let server = Server::start(|_, request| match request.path.as_str() {
        "/v2/sandboxes?limit=2" => with(reply(200, json!([listed("a"), listed("b")])), "x-next-token", "t1"),
        "/v2/sandboxes?limit=2&nextToken=t1" => with(reply(200, json!([])), "x-next-token", "t2"),
        "/v2/sandboxes?limit=2&nextToken=t2" => reply(200, json!([listed("c")])),
        other => panic!("{other}"),
    })
    .await;
    let mut pages = client(&server).list(ListSandboxes { page_size: Some(2), ..ListSandboxes::default() });
    let mut ids = Vec::new();
    while let Some(sandbox) = pages.next().await.unwrap() {
        ids.push(sandbox.id.to_string());
    }
    assert_eq!(ids, ["a", "b", "c"]);
    assert!(pages.next_page().await.unwrap().is_none());
}

#[tokio::test]
async fn a_list_that_turns_in_circles_is_an_error() {
    let server = Server::start(|_, _| with(reply(200, json!([])), "x-next-token", "same")).await;
    let error = client(&server).list(ListSandboxes::default()).collect().await.unwrap_err();
    assert!(matches!(error, ApiError::Protocol(_)));
}

#[tokio::test]
async fn what_has_already_happened_is_told_as_false() {
    let server = Server::start(|_, request| match (request.method.as_str(), request.path.as_str()) {
        ("DELETE", "/sandboxes/i1") => text(204, ""),
        ("DELETE", "/sandboxes/gone") => reply(404, json!({"code": 404, "message": "gone"})),
        ("POST", "/sandboxes/i1/pause") if request.json() == json!({"memory": true}) => text(204, ""),
        ("POST", "/sandboxes/i1/pause") => reply(409, json!({"code": 409, "message": "paused"})),
        other => panic!("{other:?}"),
    })
    .await;
    let client = client(&server);
    assert!(client.kill(&id()).await.unwrap());
    assert!(!client.kill(&"gone".parse().unwrap()).await.unwrap());
    assert!(client.pause(&id(), true).await.unwrap());
    assert!(!client.pause(&id(), false).await.unwrap());
}

#[tokio::test]
async fn logs_and_metrics_are_read() {
    let server = Server::start(|_, request| match request.path.as_str() {
        "/sandboxes/i1/logs?start=5&limit=10" => reply(
            200,
            json!({"logs": [], "logEntries": [
                {"timestamp": "2026-11-15T10:00:00Z", "level": "info", "message": "hello", "fields": {"pid": "7"}},
            ]}),
        ),
        "/sandboxes/i1/metrics?end=9" => reply(
            200,
            json!([{
                "timestamp": "2026-11-15T10:00:00Z", "timestampUnix": 1, "cpuCount": 2, "cpuUsedPct": 1.5, "memUsed": 1,
                "memTotal": 2, "memCache": 0, "diskUsed": 3, "diskTotal": 4,
            }]),
        ),
        other => panic!("{other}"),
    })
    .await;
    let client = client(&server);
    let logs = client.logs(&id(), LogQuery { start_ms: Some(5), limit: Some(10) }).await.unwrap();
    assert_eq!((logs[0].message.as_str(), logs[0].fields["pid"].as_str()), ("hello", "7"));
    assert_eq!(client.metrics(&id(), None, Some(9)).await.unwrap()[0].disk_total, 4);
}

#[tokio::test]
async fn keys_are_made_listed_and_revoked() {
    let key = json!({"id": "k1", "name": "ci", "createdAt": "2026-11-15T10:00:00Z", "lastUsed": null, "mask": {}});
    let mut new = key.clone();
    new["key"] = "e2b_secret".into();
    let server = Server::start(move |_, request| match (request.method.as_str(), request.path.as_str()) {
        ("GET", "/api-keys") => reply(200, json!([key])),
        ("POST", "/api-keys") if request.json() == json!({"name": "ci"}) => reply(201, new.clone()),
        ("DELETE", "/api-keys/k1") => text(204, ""),
        _ => reply(404, json!({"code": 404, "message": "no such API key"})),
    })
    .await;
    let client = client(&server);
    let made = client.create_key("ci").await.unwrap();
    assert_eq!(made.key, "e2b_secret");
    assert!(!format!("{made:?}").contains("secret"));
    assert_eq!(client.list_keys().await.unwrap(), [made.info]);
    assert!(client.revoke_key("k1").await.unwrap());
    assert!(!client.revoke_key("../x").await.unwrap());
    assert_eq!(server.received().last().unwrap().path, "/api-keys/..%2Fx");
}

/// A sandbox with this response of its interpreter.
async fn with_interpreter(
    answer: impl Fn() -> Reply + Send + Sync + 'static,
) -> (Server, isopod_client::sandbox::Sandbox) {
    let server = Server::start(move |_, request| match request.path.as_str() {
        "/v2/sandboxes" => reply(201, made()),
        _ => answer(),
    })
    .await;
    let sandbox = client(&server).create(NewSandbox::new("base")).await.unwrap();
    (server, sandbox)
}

#[tokio::test]
async fn failures_of_the_interpreter_are_errors() {
    let (_server, sandbox) = with_interpreter(|| text(404, "Context c not found")).await;
    assert!(sandbox.run_code(RunCode::new("1").context("c")).await.unwrap_err().is_not_found());

    let line = Bytes::from_static(b"{\"type\":\"stdout\",\"text\":\"a\"}\n");
    let piece = line.clone();
    let (_server, sandbox) = with_interpreter(move || {
        streamed(200, "application/x-ndjson", stream::iter([Ok(piece.clone()), Err(io::Error::other("cut"))]))
    })
    .await;
    let failed = async { sandbox.run_code("1").await?.collect().await }.await.unwrap_err();
    assert!(matches!(failed, GuestError::Transport(TransportError::Broken { .. })), "{failed:?}");

    let (_server, sandbox) =
        with_interpreter(move || streamed(200, "application/x-ndjson", silent_after(vec![line.clone()]))).await;
    let code = RunCode::new("1").timeout(Duration::from_millis(100));
    let mut execution = sandbox.run_code(code).await.unwrap();
    assert_eq!(execution.next().await.unwrap(), Some(CodeEvent::Stdout("a".into())));
    assert!(execution.next().await.unwrap_err().is_timeout());
    assert_eq!(execution.next().await.unwrap(), None);
}

#[tokio::test]
async fn code_tells_its_output_and_result_however_they_are_cut() {
    let lines = [
        json!({"type": "number_of_executions", "execution_count": 3}),
        json!({"type": "stdout", "text": "hé\n", "timestamp": "2026-11-15T10:00:00Z"}),
        json!({"type": "keepalive"}),
        json!({"type": "result", "text": "2", "is_main_result": true}),
        json!({"type": "error", "name": "E", "value": "v", "traceback": "t"}),
        json!({"type": "end_of_execution"}),
    ];
    let whole: String = lines.iter().map(|line| format!("{line}\n")).collect();
    let (server, sandbox) = with_interpreter(move || {
        let pieces: Vec<_> = whole.as_bytes().chunks(5).map(|piece| Ok(Bytes::copy_from_slice(piece))).collect();
        streamed(200, "application/x-ndjson", stream::iter(pieces))
    })
    .await;
    let executed = sandbox.run_code("1+1").await.unwrap().collect().await.unwrap();
    assert_eq!((executed.stdout.as_str(), executed.execution_count), ("hé\n", Some(3)));
    assert_eq!((executed.results[0].text.as_deref(), executed.error.unwrap().name.as_str()), (Some("2"), "E"));
    let request = &server.received()[1];
    assert_eq!((request.path.as_str(), request.json()), ("/execute", json!({"code": "1+1"})));
    assert_eq!((request.header("e2b-sandbox-port"), request.header("x-access-token")), ("49999", "envd-secret"));
    assert_eq!(request.header("e2b-traffic-access-token"), "traffic-secret");
}

#[tokio::test]
async fn a_client_without_retries_sends_once_and_hands_the_wait_on() {
    let server = Server::start(|_, _| busy()).await;
    let refused = client(&server).without_retries().info(&id()).await;
    let Err(ApiError::Unavailable { retry_after, .. }) = refused else { panic!("{refused:?}") };
    assert_eq!((retry_after, server.received().len()), (Some(Duration::ZERO), 1));
}

#[tokio::test]
async fn attaching_neither_wakes_nor_extends() {
    let detail = |_: usize, _: &Received| {
        let mut detail = listed("i1");
        detail["state"] = "paused".into();
        detail["envdAccessToken"] = "envd-secret".into();
        reply(200, detail)
    };
    let server = Server::start(detail).await;
    let (sandbox, detail) = client(&server).attach(&id()).await.unwrap();
    assert_eq!((sandbox.id(), detail.info.state), (&id(), SandboxState::Paused));
    sandbox.guest().health().await.unwrap();
    let received = server.received();
    let asked: Vec<_> = received.iter().map(|request| (request.method.as_str(), request.path.as_str())).collect();
    assert_eq!(asked, [("GET", "/sandboxes/i1"), ("GET", "/health")]);
    assert_eq!(received[1].header("x-access-token"), "envd-secret");
}
