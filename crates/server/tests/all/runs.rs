//! Runs over HTTP: what is refused, and how they are started, controlled, watched, and resumed after a crash.

use crate::support;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, Response};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use support::Server;
use support::hostile::ENDLESS;
use support::outside::{serve_http, serve_tls};
use support::redis::RedisServer;
use support::server::until;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

async fn server() -> Server {
    Server::start_with(|config| config.agents.runs.allow_internal_agents = true).await
}

/// An agent that answers everything successfully, on its own port.
async fn agent(invoked: &Arc<AtomicU32>) -> String {
    let invoked = Arc::clone(invoked);
    let answer = hyper::service::service_fn(move |request: Request<Incoming>| {
        if request.method() == Method::POST {
            assert_eq!(request.uri().path(), "/agents/invoke");
            invoked.fetch_add(1, Ordering::Relaxed);
        }
        let body = json!({ "success": true, "output": "well", "tokens_used": 7, "agent_id": "x",
            "thought_signature": "signed" });
        let body = body.to_string();
        async move { Ok::<_, hyper::Error>(Response::new(Full::new(Bytes::from(body)))) }
    });
    format!("http://{}/agents/", serve_http(answer).await)
}

async fn start(server: &Server, flow: Value) -> String {
    let started = server.client.post("/runtime/start", flow).await;
    assert_eq!((started.status, &started.json["success"]), (200, &json!(true)), "{started:?}");
    started.json["run_id"].as_str().unwrap().to_owned()
}

async fn state(server: &Server, run: &str) -> Value {
    server.client.get(&format!("/runtime/state?run_id={run}")).await.json
}

async fn ended(server: &Server, run: &str, status: &str) {
    until("the run ends", || async { state(server, run).await["status"] == status }).await;
}

#[tokio::test]
async fn bad_workflows_and_bad_ids_are_refused_and_nothing_is_started() {
    let server = server().await;
    let node = |id: &str, on: &[&str]| json!({ "id": id, "command": "true", "depends_on": on });
    let many: Vec<Value> = (0..10_001).map(|number| node(&format!("n{number}"), &[])).collect();
    for (flow, words) in [
        (json!({ "nodes": [node("a", &["b"]), node("b", &["a"])] }), "cycle"),
        (json!({ "nodes": [node("a", &["x"])] }), "does not exist"),
        (json!({ "nodes": [node("a", &[]), node("a", &[])] }), "two nodes"),
        (json!({ "nodes": many }), "10001"),
        (json!({ "nodes": [] }), "no nodes"),
        (json!({ "nodes": [node("../a", &[])] }), "not an id"),
        (json!({ "agents": [{ "id": "a", "prompt": "x" }] }), "agent"),
        (json!({ "nodes": [node("a", &[])], "attached_files": ["../../etc/passwd"] }), "attached"),
        (json!({ "wat": 1 }), "wat"),
        (json!([]), "cannot parse"),
    ] {
        let refused = server.client.post("/runtime/start", flow).await;
        assert_eq!(refused.status, 400, "{refused:?}");
        assert!(refused.json["message"].as_str().unwrap().contains(words), "{words}: {}", refused.text);
    }
    assert_eq!(server.client.get("/runtime/runs").await.json, json!([]));
    for path in ["/runtime/..%2f..%2fetc/stop", "/runtime/a%20b/resume", "/runtime/a%00b/approve"] {
        assert_eq!(server.client.post(path, json!({})).await.status, 400, "{path}");
    }
    assert_eq!(server.client.get("/runtime/state?run_id=..%2f").await.status, 400);
    assert_eq!(server.client.get("/runtime/state?run_id=nobody").await.status, 404);
    assert_eq!(server.client.get("/runtime/state").await.status, 400);
    assert_eq!(server.client.get("/runtime/runs?status=sleepy").await.status, 400);
    assert_eq!(server.client.post("/runtime/nobody/resume", json!({})).await.status, 404);
    let odd = [("x-raro-client-id", "a b")];
    let flow = json!({ "nodes": [node("a", &[])] });
    assert_eq!(server.client.call(Method::POST, "/runtime/start", &odd, Some(flow)).await.status, 400);
}

#[tokio::test]
async fn a_workflow_in_yaml_runs_and_only_its_team_sees_it() {
    let server = server().await;
    let invoked = Arc::new(AtomicU32::new(0));
    let url = agent(&invoked).await;
    let flow =
        format!("name: two\nnodes:\n  - id: a\n    agent: {url}\n  - id: b\n    agent: {url}\n    depends_on: [a]\n");
    let headers =
        [("x-api-key", server.client.key.as_str()), ("content-type", "application/yaml"), ("x-raro-client-id", "me-1")];
    let started = server.client.raw(Method::POST, "/runtime/start", &headers, flow.into()).await;
    assert_eq!(started.status, 200, "{started:?}");
    let run = started.json["run_id"].as_str().unwrap();
    ended(&server, run, "completed").await;
    let state = state(&server, run).await;
    assert_eq!(
        (&state["client_id"], &state["name"], &state["total_tokens_used"]),
        (&json!("me-1"), &json!("two"), &json!(14))
    );
    assert_eq!((&state["completed_agents"], &state["nodes"][0]["output"]), (&json!(["a", "b"]), &json!("well")));
    assert_eq!(invoked.load(Ordering::Relaxed), 2);
    until("it is cleaned up", || async { self::state(&server, run).await["cleaned_up"] == true }).await;
    let listed = server.client.get("/runtime/runs?status=completed").await.json;
    assert_eq!(listed[0]["run_id"], run);

    let output = server.client.get(&format!("/runtime/{run}/artifact/a")).await;
    assert_eq!((output.status, &output.json["output"]), (200, &json!("well")));
    assert_eq!(server.client.get(&format!("/runtime/{run}/artifact/x")).await.status, 404);

    let other = server.other_team().await;
    assert_eq!(other.get(&format!("/runtime/state?run_id={run}")).await.status, 404);
    assert_eq!(other.get(&format!("/runtime/{run}/events")).await.status, 404);
    assert_eq!(other.post(&format!("/runtime/{run}/stop"), json!({})).await.status, 404);
    assert_eq!(other.get("/runtime/runs").await.json, json!([]));
    assert_eq!(server.client.post(&format!("/runtime/{run}/stop"), json!({})).await.status, 409);
}

#[tokio::test]
async fn agents_on_internal_addresses_are_not_called_unless_that_is_allowed() {
    let server = Server::start().await;
    let invoked = Arc::new(AtomicU32::new(0));
    let url = agent(&invoked).await;
    let run = start(&server, json!({ "nodes": [{ "id": "a", "agent": url }] })).await;
    ended(&server, &run, "failed").await;
    assert_eq!(invoked.load(Ordering::Relaxed), 0);
    assert!(state(&server, &run).await["error"].as_str().unwrap().contains("internal address"));
}

#[tokio::test]
async fn https_agents_are_called_if_they_can_prove_who_they_are() {
    let (url, authority) = tls_agent().await;
    let (strange_url, _) = tls_agent().await;
    let server = Server::start_with(move |config| {
        config.agents.runs.allow_internal_agents = true;
        config.control.webhook_authorities.clone_from(&authority);
    })
    .await;
    let known = start(&server, json!({ "nodes": [{ "id": "a", "agent": url }] })).await;
    ended(&server, &known, "completed").await;
    let stranger = start(&server, json!({ "nodes": [{ "id": "a", "agent": strange_url }] })).await;
    ended(&server, &stranger, "failed").await;
    assert!(state(&server, &stranger).await["error"].as_str().unwrap().contains("certificate is not trusted"));
}

/// An agent with a self-signed certificate. Returns the certificate too.
async fn tls_agent() -> (String, Vec<u8>) {
    let answer = hyper::service::service_fn(|_: Request<Incoming>| async {
        Ok::<_, hyper::Error>(Response::new(Full::new(Bytes::from_static(br#"{"success": true}"#))))
    });
    let (address, certificate) = serve_tls(answer).await;
    (format!("https://{address}"), certificate)
}

#[tokio::test]
async fn approvals_are_given_over_http_and_outlive_a_crash() {
    let mut server = server().await;
    let url = agent(&Arc::default()).await;
    let run = start(&server, json!({ "nodes": [{ "id": "a", "agent": url, "approval": true }] })).await;
    ended(&server, &run, "awaitingapproval").await;
    assert_eq!(server.client.post(&format!("/runtime/{run}/approve"), json!({ "node": "x" })).await.status, 400);
    server.crash().await;
    let server = server.start_again().await;
    assert_eq!(state(&server, &run).await["waiting_agents"], json!(["a"]));
    assert_eq!(server.client.post(&format!("/runtime/{run}/approve"), json!({ "node": "a" })).await.status, 200);
    ended(&server, &run, "completed").await;
    let waiting = start(&server, json!({ "nodes": [{ "id": "a", "agent": url, "approval": true }] })).await;
    ended(&server, &waiting, "awaitingapproval").await;
    assert_eq!(server.client.post(&format!("/runtime/{waiting}/stop"), json!({})).await.status, 200);
    assert_eq!(state(&server, &waiting).await["reason"], "stopped");
}

#[tokio::test]
async fn runs_that_do_not_wait_cannot_be_resumed() {
    let server = server().await;
    let running = start(&server, json!({ "nodes": [{ "id": "a", "code": ENDLESS, "timeout": 600 }] })).await;
    ended(&server, &running, "running").await;
    for (path, body) in [("resume", json!({})), ("approve", json!({ "approved": true }))] {
        let refused = server.client.post(&format!("/runtime/{running}/{path}"), body).await;
        assert_eq!((refused.status, &refused.json["code"]), (400, &json!(400)), "{refused:?}");
        assert_eq!(refused.json["message"], "the run is not paused");
    }
    assert_eq!(state(&server, &running).await["status"], "running", "it goes on");
    assert_eq!(server.client.post("/runtime/nobody/resume", json!({})).await.status, 404);
    assert_eq!(server.client.post(&format!("/runtime/{running}/stop"), json!({})).await.status, 200);
    assert_eq!(server.client.post(&format!("/runtime/{running}/resume"), json!({})).await.status, 409, "it has ended");
}

/// Each agent's signature goes to the agents after it, and whoever has the key can read all of them.
#[tokio::test]
async fn the_signatures_of_a_runs_agents_are_read_by_its_id() {
    let server = server().await;
    let answer = hyper::service::service_fn(|request: Request<Incoming>| async move {
        let body = request.into_body().collect().await.unwrap().to_bytes();
        let invoked: Value = serde_json::from_slice(&body).unwrap_or_default();
        let before = invoked["parent_signature"].as_str().unwrap_or("first");
        let signature = format!("{before}>{}", invoked["agent_id"].as_str().unwrap_or_default());
        let answer = json!({ "success": true, "output": "well", "thought_signature": signature }).to_string();
        Ok::<_, hyper::Error>(Response::new(Full::new(Bytes::from(answer))))
    });
    let url = format!("http://{}/agents/", serve_http(answer).await);
    let flow = json!({ "nodes": [
        { "id": "a", "agent": url }, { "id": "b", "agent": url, "depends_on": ["a"] }, { "id": "c", "code": "1" },
    ] });
    let run = start(&server, flow).await;
    ended(&server, &run, "completed").await;
    let path = format!("/runtime/signatures?run_id={run}");
    let signatures = server.client.get(&path).await;
    assert_eq!((signatures.status, signatures.json), (200, json!({ "a": "first>a", "b": "first>a>b" })));
    assert_eq!(server.other_team().await.get(&path).await.status, 404);
    assert_eq!(server.client.get("/runtime/signatures").await.status, 400);
    assert_eq!(server.client.get("/runtime/signatures?run_id=nobody").await.status, 404);
}

#[tokio::test]
async fn a_server_that_stops_first_removes_the_sandboxes_of_runs_that_have_ended() {
    let mut server = server().await;
    server.node.faults.change_takes.store(1000, Ordering::Relaxed);
    // As many as are removed concurrently, and some more.
    let mut runs = Vec::new();
    for _ in 0..20 {
        runs.push(start(&server, json!({ "nodes": [{ "id": "a", "code": "1" }] })).await);
    }
    for run in &runs {
        ended(&server, run, "completed").await;
    }
    assert!(server.node.count() > 0, "a removal takes a second");
    server.stop().await;
    assert_eq!(server.node.count(), 0);
}

#[tokio::test]
async fn events_are_replayed_from_where_a_watcher_left_off() {
    let server = server().await;
    let url = agent(&Arc::default()).await;
    let run = start(
        &server,
        json!({ "nodes": [{ "id": "a", "agent": url }, { "id": "b", "agent": url, "depends_on": ["a"] }] }),
    )
    .await;
    // Follows the run to its end, however early it comes.
    let all = server.client.get(&format!("/runtime/{run}/events")).await;
    assert_eq!((all.status, all.headers["content-type"].as_bytes()), (200, b"text/event-stream".as_slice()));
    let ids =
        |text: &str| text.lines().filter_map(|line| line.strip_prefix("id: ")?.parse::<u32>().ok()).collect::<Vec<_>>();
    let seen = ids(&all.text);
    assert_eq!(seen, (1..=u32::try_from(seen.len()).unwrap()).collect::<Vec<_>>());
    for word in ["event: RunStarted", "event: AgentStarted", "event: AgentCompleted", "event: RunEnded"] {
        assert!(all.text.contains(word), "{word}: {}", all.text);
    }
    let rest =
        server.client.call(Method::GET, &format!("/runtime/{run}/events"), &[("last-event-id", "3")], None).await;
    assert_eq!(ids(&rest.text), seen[3..]);
    let path = format!("/runtime/{run}/events");
    assert_eq!(server.client.call(Method::GET, &path, &[("last-event-id", "x")], None).await.status, 400);
}

#[tokio::test]
async fn a_websocket_shows_the_state_first_and_the_events_and_closes_at_the_end() {
    let server = server().await;
    let url = agent(&Arc::default()).await;
    let run = start(&server, json!({ "nodes": [{ "id": "a", "agent": url, "approval": true }] })).await;
    let mut socket = WebSocket::open(&server, &format!("/ws/runtime/{run}")).await;
    let first = socket.next().await.unwrap();
    assert_eq!((&first["type"], &first["state"]["run_id"]), (&json!("state_update"), &json!(run)));
    assert_eq!(first["topology"], json!({ "nodes": ["a"], "edges": [] }));
    assert_eq!(first["signatures"], json!({}));
    ended(&server, &run, "awaitingapproval").await;
    server.client.post(&format!("/runtime/{run}/resume"), json!({})).await;
    let mut kinds = Vec::new();
    let mut last = Value::Null;
    while let Some(message) = socket.next().await {
        kinds.push(message["type"].as_str().unwrap().to_owned());
        last = message;
    }
    for kind in ["intervention_event", "agent_started", "agent_completed", "log_event", "state_update"] {
        assert!(kinds.iter().any(|seen| seen == kind), "{kind}: {kinds:?}");
    }
    assert_eq!(last["state"]["status"], "completed", "{last}");
    assert_eq!(last["signatures"], json!({ "a": "signed" }), "{last}");
    let mut nobody = WebSocket::open(&server, "/ws/runtime/nobody").await;
    assert_eq!(nobody.next().await.unwrap(), json!({ "error": "Run not found" }));
    assert_eq!(server.client.get(&format!("/ws/runtime/{run}")).await.status, 400);
}

/// What a node prints is sent while it runs, and its failure has a type of its own.
#[tokio::test]
async fn a_websocket_shows_live_output_and_failures() {
    let server = server().await;
    let follow = async |code: &str| {
        let node = json!({ "id": "a", "code": code, "approval": true, "timeout": 600 });
        let run = start(&server, json!({ "nodes": [node] })).await;
        ended(&server, &run, "awaitingapproval").await;
        let socket = WebSocket::open(&server, &format!("/ws/runtime/{run}")).await;
        server.client.post(&format!("/runtime/{run}/resume"), json!({})).await;
        (run, socket)
    };
    let (run, mut socket) = follow(ENDLESS).await;
    let printed = socket.until(|message| message["payload"]["category"] == "TOOL_OUTPUT").await;
    assert_eq!((&printed["type"], &printed["agent_id"]), (&json!("log_event"), &json!("a")), "{printed}");
    assert_eq!(printed["payload"]["metadata"], "STDOUT", "{printed}");
    assert!(printed["payload"]["message"].as_str().unwrap().starts_with("xxx"), "{printed}");
    assert_eq!(state(&server, &run).await["active_agents"], json!(["a"]), "it is still running");
    server.client.post(&format!("/runtime/{run}/stop"), json!({})).await;

    let (_, mut socket) = follow("raise").await;
    let failed = socket.until(|message| message["type"] == "agent_failed").await;
    assert_eq!((&failed["agent_id"], &failed["event_type"]), (&json!("a"), &json!("AgentFailed")), "{failed}");
    assert!(failed["payload"]["error"].as_str().unwrap().starts_with("RUNTIME ERROR: E: v"), "{failed}");
    let last = socket.until(|message| message["state"]["status"] == "failed").await;
    assert_eq!(last["state"]["failed_agents"], json!(["a"]), "{last}");
}

/// However fast events come, the state is sent at most every 250 ms, and only if something has changed.
#[tokio::test]
async fn a_websocket_sends_the_state_of_a_busy_run_now_and_then() {
    let server = server().await;
    let run = start(&server, json!({ "nodes": [{ "id": "a", "command": "true", "approval": true }] })).await;
    ended(&server, &run, "awaitingapproval").await;
    let mut socket = WebSocket::open(&server, &format!("/ws/runtime/{run}")).await;
    let path = format!("/runtime/{run}/execute");
    let work = async {
        loop {
            server.client.post(&path, json!({ "code": "hello", "agent_id": "helper" })).await;
        }
    };
    let watch = async {
        let (mut states, mut events) = (vec![socket.next().await.unwrap()], 0);
        while states.len() < 5 {
            let message = socket.next().await.unwrap();
            if message["type"] == "state_update" {
                assert!(events > 0, "the state came again and nothing had happened: {message}");
                states.push(message);
                events = 0;
            } else {
                events += 1;
            }
        }
        states
    };
    let states = tokio::select! {
        states = watch => states,
        () = work => unreachable!("it never ends"),
    };
    let moment = |state: &Value| OffsetDateTime::parse(state["timestamp"].as_str().unwrap(), &Rfc3339).unwrap();
    let moments: Vec<OffsetDateTime> = states.iter().map(moment).collect();
    assert!(moments.windows(2).all(|pair| pair[1] - pair[0] >= Duration::from_millis(250)), "{moments:?}");
    server.client.post(&format!("/runtime/{run}/stop"), json!({})).await;
}

/// If the sandbox of a run is removed, the run ends, and gets no new one.
#[tokio::test]
async fn a_cleanup_ends_the_run_and_later_calls_in_its_name_are_refused() {
    let server = server().await;
    let run = start(&server, json!({ "nodes": [{ "id": "a", "command": "true", "approval": true }] })).await;
    ended(&server, &run, "awaitingapproval").await;
    let path = format!("/runtime/{run}/cleanup");
    let cleaned = server.client.delete(&path).await;
    assert_eq!((cleaned.status, &cleaned.json["status"]), (200, &json!("cleaned")), "{cleaned:?}");
    assert_eq!(state(&server, &run).await["reason"], "cancelled");
    assert_eq!(server.client.delete(&path).await.status, 200);
    for path in [format!("/runtime/{run}/execute"), format!("/runtime/{run}/tools/execute_python")] {
        let refused = server.client.post(&path, json!({ "code": "1" })).await;
        assert_eq!(refused.status, 409, "{refused:?}");
    }
    assert_eq!(server.client.get("/v2/sandboxes").await.json, json!([]));
}

#[tokio::test]
async fn attached_files_come_from_the_library_and_must_be_there() {
    let server = server().await;
    let flow = json!({ "nodes": [{ "id": "a", "command": "true", "approval": true }], "attached_files": ["a.csv"] });
    assert_eq!(server.client.post("/runtime/start", flow.clone()).await.status, 404);
    assert_eq!(server.client.get("/runtime/runs").await.json, json!([]));
    let boundary = "--x\r\ncontent-disposition: form-data; name=\"file\"; filename=\"a.csv\"\r\n\r\n1,2\r\n--x--\r\n";
    let headers = [("x-api-key", server.client.key.as_str()), ("content-type", "multipart/form-data; boundary=x")];
    let uploaded = server.client.raw(Method::POST, "/runtime/library/upload", &headers, boundary.into()).await;
    assert!(uploaded.status < 300, "{uploaded:?}");
    let run = start(&server, flow).await;
    assert_eq!(server.client.get(&format!("/runtime/{run}/files/a.csv")).await.text, "1,2");
    server.client.post(&format!("/runtime/{run}/stop"), json!({})).await;
}

/// A real Redis is stopped and started during a run.
#[tokio::test]
async fn states_are_copied_to_redis_and_its_loss_loses_nothing() {
    let mut redis = RedisServer::start();
    let redis_url = redis.url();
    let server = Server::start_with(move |config| {
        config.agents.runs.allow_internal_agents = true;
        config.agents.sessions.redis_url = Some(redis_url.clone());
    })
    .await;
    let url = agent(&Arc::default()).await;
    let run = start(&server, json!({ "nodes": [{ "id": "a", "agent": url, "approval": true }] })).await;
    let key = format!("run:{run}:state");
    let copied = |redis: &RedisServer| serde_json::from_str::<Value>(&redis.ask(&["GET", &key])).unwrap_or_default();
    until("it waits there too", || async { copied(&redis)["status"] == "awaitingapproval" }).await;
    assert_eq!(redis.ask(&["SISMEMBER", "sys:active_runs", &run]), "1");
    assert_eq!(redis.ask(&["TTL", &key]), "-1");
    redis.stop();
    assert_eq!(server.client.post(&format!("/runtime/{run}/resume"), json!({})).await.status, 200);
    ended(&server, &run, "completed").await;
    redis.start_again();
    for _ in 0..40 {
        if copied(&redis)["status"] == "completed" {
            break;
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    assert_eq!(copied(&redis)["status"], "completed");
    assert_eq!(redis.ask(&["SISMEMBER", "sys:active_runs", &run]), "0");
    let output = format!("run:{run}:agent:a:output");
    assert!(redis.ask(&["GET", &output]).contains("well"));
    assert!((3000..=3600).contains(&redis.ask(&["TTL", &output]).parse::<i64>().unwrap()));
    let left: i64 = redis.ask(&["TTL", &key]).parse().unwrap();
    assert!((80_000..=86_400).contains(&left), "{left}");
}

/// Just enough of a WebSocket to read text.
struct WebSocket(TokioIo<hyper::upgrade::Upgraded>);

impl WebSocket {
    async fn open(server: &Server, path: &str) -> Self {
        let headers = [
            ("x-api-key", server.client.key.as_str()),
            ("connection", "upgrade"),
            ("upgrade", "websocket"),
            ("sec-websocket-version", "13"),
            ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
        ];
        let response = server.client.open(Method::GET, path, &headers, Bytes::new()).await;
        let status = response.status();
        if status != 101 {
            panic!("{status}: {:?}", response.into_body().collect().await.unwrap().to_bytes());
        }
        Self(TokioIo::new(hyper::upgrade::on(response).await.unwrap()))
    }

    /// Returns the next message of this kind. It must come before the server closes.
    async fn until(&mut self, is_it: impl Fn(&Value) -> bool) -> Value {
        loop {
            let message = self.next().await.expect("a message before the end");
            if is_it(&message) {
                return message;
            }
        }
    }

    /// Returns the next message, or `None` if the server closes.
    async fn next(&mut self) -> Option<Value> {
        loop {
            let mut head = [0_u8; 2];
            self.0.read_exact(&mut head).await.ok()?;
            let length = match head[1] & 0x7f {
                126 => usize::from(self.0.read_u16().await.ok()?),
                127 => usize::try_from(self.0.read_u64().await.ok()?).unwrap(),
                short => usize::from(short),
            };
            let mut body = vec![0; length];
            self.0.read_exact(&mut body).await.ok()?;
            match head[0] & 0x0f {
                1 => return Some(serde_json::from_slice(&body).unwrap()),
                8 => {
                    let _ = self.0.write_all(&[0x88, 0x80, 0, 0, 0, 0]).await;
                    return None;
                }
                _ => {}
            }
        }
    }
}
