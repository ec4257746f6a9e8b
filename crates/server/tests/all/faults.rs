//! Failures below the server: a locked store, a burst, a server that dies with many sandboxes.

use crate::support;

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use http::Method;
use serde_json::json;
use sqlx::{Connection as _, Executor as _, SqliteConnection};
use support::Server;
use support::server::until;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

#[tokio::test]
async fn a_locked_store_gives_a_clear_error_and_recovers_without_a_restart() {
    let server = Server::start().await;
    let id = server.create(json!({ "timeout": 2, "autoPause": true })).await;
    let ends = server.create(json!({ "timeout": 2 })).await;
    let mut other = SqliteConnection::connect(server.database().to_str().unwrap()).await.unwrap();
    other.execute("BEGIN IMMEDIATE").await.unwrap();
    let refused = server.client.post("/v2/sandboxes", json!({ "templateID": "base" })).await;
    assert_eq!((refused.status, refused.headers["should-retry"].to_str().unwrap()), (503, "true"));
    assert!(refused.headers.contains_key("retry-after"));
    assert_eq!(server.client.get("/v2/sandboxes").await.status, 200, "reading goes on");
    other.execute("ROLLBACK").await.unwrap();
    drop(other);
    // If the lock also affected the audit log, requests are refused until its next entry is written.
    until("creates are served again", || async {
        let made = server.client.post("/v2/sandboxes", json!({ "templateID": "base" })).await;
        let is_audit = made.status == 503 && made.json["error_code"] == "audit_unavailable";
        assert!(made.status == 201 || is_audit, "{made:?}");
        made.status == 201
    })
    .await;
    until("one is paused and the other gone", || async {
        let kept = server.client.get(&format!("/sandboxes/{id}")).await;
        kept.json["state"] == "paused" && server.client.get(&format!("/sandboxes/{ends}")).await.status == 404
    })
    .await;
    assert_eq!(server.node.count(), 2, "no orphan");
    assert_eq!(server.client.get("/v2/sandboxes").await.json.as_array().unwrap().len(), 2);
}

#[tokio::test]
async fn a_server_stops_although_its_store_is_locked() {
    let mut server = Server::start().await;
    let fields = json!({ "timeout": 1, "autoPause": true });
    let made: Vec<_> = futures::future::join_all((0..100).map(|_| server.create(fields.clone()))).await;
    let mut other = SqliteConnection::connect(server.database().to_str().unwrap()).await.unwrap();
    other.execute("BEGIN IMMEDIATE").await.unwrap();
    // All of them want to write that they pause.
    tokio::time::sleep(Duration::from_secs(2)).await;
    tokio::time::timeout(Duration::from_secs(30), server.stop()).await.expect("the server stops");
    other.execute("ROLLBACK").await.unwrap();
    drop(other);
    let server = server.start_again().await;
    for id in &made {
        until("the next server pauses it", || async {
            server.client.get(&format!("/sandboxes/{id}")).await.json["state"] == "paused"
        })
        .await;
    }
}

#[tokio::test]
async fn a_burst_of_creates_is_served_and_a_dead_server_loses_none() {
    let mut server = Server::start().await;
    let started = Instant::now();
    let calls = (0..100).map(|_| server.client.post("/v2/sandboxes", json!({ "templateID": "base" })));
    let answers = futures::future::join_all(calls).await;
    assert!(answers.iter().all(|answer| answer.status == 201));
    assert!(started.elapsed() < Duration::from_secs(3), "{:?}", started.elapsed());
    server.crash().await;
    let started = Instant::now();
    let server = server.start_again().await;
    until("all are adopted", || async {
        let list = server.client.get("/v2/sandboxes?state=running").await;
        list.json.as_array().is_some_and(|list| list.len() == 100)
    })
    .await;
    assert!(started.elapsed() < Duration::from_secs(2), "{:?}", started.elapsed());
    assert_eq!(server.node.count(), 100);
    for answer in &answers {
        let id = answer.json["sandboxID"].as_str().unwrap();
        assert_eq!(server.client.inside(id, 8080, "/").await.status, 200);
    }
}

#[tokio::test]
async fn malformed_requests_never_break_the_server() {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let server = Server::start().await;
    let id = server.create(json!({})).await;
    let heads = [
        "\0\0\0\0".to_owned(),
        "GET\r\n\r\n".to_owned(),
        "GET / HTTP/9.9\r\n\r\n".to_owned(),
        "POST /v2/sandboxes HTTP/1.1\r\nhost: x\r\ncontent-length: -1\r\n\r\n".to_owned(),
        "POST /v2/sandboxes HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n".to_owned(),
        format!("GET /%ff%fe/{} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n", "a/".repeat(5000)),
        format!("GET /x HTTP/1.1\r\nhost: 8080-{id}.localhost\r\nconnection: close, upgrade\r\nupgrade: nothing\r\n\r\n"),
        format!("GET http://[::1/ HTTP/1.1\r\nhost: 8080-{id}.localhost\r\n\r\n"),
        "GET /v2/sandboxes?metadata=%ff%00&limit=9999999999999999999999 HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n".to_owned(),
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\nrubbish-rubbish-rubbish".to_owned(),
    ];
    for head in heads {
        let mut stream = tokio::net::TcpStream::connect(server.address).await.unwrap();
        let _ = stream.write_all(head.as_bytes()).await;
        let _ = stream.shutdown().await;
        let mut answer = Vec::new();
        let read = tokio::time::timeout(Duration::from_secs(3), stream.read_to_end(&mut answer)).await;
        assert!(read.is_ok(), "hangs: {head:?}");
        assert!(!answer.starts_with(b"HTTP/1.1 5"), "{head:?} {:?}", String::from_utf8_lossy(&answer));
    }
    assert_eq!(server.client.get(&format!("/sandboxes/{id}")).await.status, 200);
}

#[tokio::test]
async fn wrong_types_sizes_and_encodings_of_bodies_are_told_apart() {
    let server = Server::start_with(|config| config.control.connections.max_body = 64 << 10).await;
    let send = |headers: Vec<(&'static str, &'static str)>, body: Vec<u8>| {
        let client = server.client.clone();
        async move {
            let key = client.key.clone();
            let mut headers = headers;
            headers.push(("x-api-key", &key));
            let answer = client.raw(Method::POST, "/v2/sandboxes", &headers, body.into()).await;
            assert!(answer.status == 201 || answer.json["message"].is_string(), "{answer:?}");
            answer.status
        }
    };
    let good = br#"{"templateID":"base"}"#.to_vec();
    for kind in ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "json"] {
        assert_eq!(send(vec![("content-type", kind)], good.clone()).await, 415, "{kind}");
    }
    let json = || vec![("content-type", "application/json")];
    assert_eq!(send(vec![("content-type", "application/json"), ("content-encoding", "gzip")], good.clone()).await, 415);
    assert_eq!(send(json(), b"{".to_vec()).await, 400);
    assert_eq!(send(json(), b"[]".to_vec()).await, 400);
    assert_eq!(send(json(), b"null".to_vec()).await, 400);
    assert_eq!(send(json(), b"\xff\xfe".to_vec()).await, 400);
    assert_eq!(send(json(), b"[".repeat(60_000)).await, 400);
    assert_eq!(send(json(), b" ".repeat(1 << 20)).await, 413);
    assert_eq!(server.node.count(), 0);
    assert_eq!(send(json(), good).await, 201, "and what is right passes");
}

/// The server dies during a call to the node. The node finishes before or after the next server starts.
#[tokio::test]
async fn a_server_that_dies_in_the_middle_of_a_change_leaves_it_done_or_undone() {
    use std::sync::atomic::Ordering::Relaxed;
    for (verb, node_finishes_first) in
        [("pause", true), ("pause", false), ("resume", true), ("resume", false), ("kill", true), ("kill", false)]
    {
        let mut server = Server::start().await;
        let id = server.create(json!({})).await;
        if verb == "resume" {
            server.client.post(&format!("/sandboxes/{id}/pause"), json!({})).await;
        }
        let faults = &server.node.faults;
        let before = faults.changes.load(Relaxed);
        faults.change_takes.store(150, Relaxed);
        let (client, name) = (server.client.clone(), id.clone());
        let asking = tokio::spawn(async move {
            match verb {
                "pause" => client.post(&format!("/sandboxes/{name}/pause"), json!({})).await,
                "resume" => client.post(&format!("/v2/sandboxes/{name}/connect"), json!({})).await,
                _ => client.delete(&format!("/sandboxes/{name}")).await,
            }
        });
        until("the node is at work", || async { server.node.faults.changes.load(Relaxed) > before }).await;
        server.crash().await;
        asking.abort();
        if node_finishes_first {
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
        server.node.faults.change_takes.store(0, Relaxed);
        let server = server.start_again().await;
        let wanted = match verb {
            "pause" => json!("paused"),
            "resume" => json!("running"),
            _ => json!(null),
        };
        until(&format!("{verb} is finished ({node_finishes_first})"), || async {
            let shown = server.client.get(&format!("/sandboxes/{id}")).await;
            let agreed = match server.node.state_of(&id) {
                Some(isopod_wire::node::NodeState::Running) => json!("running"),
                Some(_) => json!("paused"),
                None => json!(null),
            };
            // An interrupted resume may also end as before: paused, and it can be requested again.
            let done = shown.json["state"] == wanted || (verb == "resume" && shown.json["state"] == "paused");
            done && (shown.json["state"] == agreed || verb == "resume")
        })
        .await;
        if verb == "resume" {
            let again = server.client.post(&format!("/v2/sandboxes/{id}/connect"), json!({})).await;
            assert!([200, 201].contains(&again.status), "{again:?}");
            assert_eq!(server.client.inside(&id, 8080, "/").await.status, 200);
        }
    }
}

#[tokio::test]
async fn a_node_that_answers_too_late_is_believed_all_the_same() {
    use std::sync::atomic::Ordering::Relaxed;
    let server = Server::start_with(|config| {
        config.control.node_timeout = Duration::from_millis(100);
        config.control.memory_timeout = Duration::from_millis(100);
    })
    .await;
    let id = server.create(json!({})).await;
    let shown = || async { server.client.get(&format!("/sandboxes/{id}")).await.json["state"].clone() };
    server.node.faults.change_takes.store(400, Relaxed);
    assert_eq!(server.client.post(&format!("/sandboxes/{id}/pause"), json!({})).await.status, 504);
    let busy = server.client.post(&format!("/sandboxes/{id}/pause"), json!({})).await;
    assert_eq!(
        (busy.status, busy.headers["should-retry"].to_str().unwrap()),
        (503, "true"),
        "not 409, which is for one that is paused"
    );
    until("the pause has arrived", || async {
        server.client.get(&format!("/sandboxes/{id}")).await.json["pauseMode"] == "full"
    })
    .await;
    let late = server.client.post(&format!("/v2/sandboxes/{id}/connect"), json!({ "timeout": 1 })).await;
    assert_eq!(late.status, 504);
    until("it runs", || async { server.client.inside(&id, 8080, "/").await.status == 200 }).await;
    assert_eq!(shown().await, "running");
    until("its time is over and it is removed", || async { server.node.count() == 0 }).await;

    server.node.faults.change_takes.store(0, Relaxed);
    let id = server.create(json!({})).await;
    server.node.faults.change_takes.store(300, Relaxed);
    server.node.faults.pause_fails.store(true, Relaxed);
    assert_eq!(server.client.post(&format!("/sandboxes/{id}/pause"), json!({})).await.status, 504);
    until("it runs on", || async { server.client.inside(&id, 8080, "/").await.status == 200 }).await;
}

/// Sends a request without reading the response.
async fn hang_up_later(server: &Server, path: &str, more: &str, body: &str) -> tokio::net::TcpStream {
    let mut socket = tokio::net::TcpStream::connect(server.address).await.unwrap();
    let (key, length) = (&server.client.key, body.len());
    let head = format!("POST {path} HTTP/1.1\r\nhost: localhost\r\nx-api-key: {key}\r\n{more}");
    let text = format!("{head}content-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}");
    socket.write_all(text.as_bytes()).await.unwrap();
    socket
}

/// Nobody could ever end it, because its id was in the unread response.
#[tokio::test]
async fn a_sandbox_whose_client_hung_up_before_the_answer_is_removed() {
    let server = Server::start().await;
    let ask = async |more: &str| hang_up_later(&server, "/v2/sandboxes", more, r#"{"templateID":"base"}"#).await;
    // Read to its first byte, the response counts as received, and the sandbox stays when the client leaves.
    let mut socket = ask("").await;
    socket.read_exact(&mut [0; 12]).await.unwrap();
    drop(socket);
    assert_eq!(server.node.count(), 1);

    server.node.faults.create_takes.store(300, Ordering::Relaxed);
    let gone = ask("").await;
    until("the node is asked", || async { server.node.creates.load(Ordering::Relaxed) == 2 }).await;
    drop(gone);
    let rows = async || server.client.get("/v2/sandboxes").await.json.as_array().unwrap().len();
    until("it is made and removed", || async { server.node.executions() == 2 && server.node.count() == 1 }).await;
    until("its row has ended", || async { rows().await == 1 }).await;

    // With a key, the client finds it by repeating the request.
    let gone = ask("idempotency-key: k1\r\n").await;
    until("the node is asked", || async { server.node.creates.load(Ordering::Relaxed) == 3 }).await;
    drop(gone);
    until("it is made", || async { server.node.executions() == 3 && rows().await == 2 }).await;
    let again = [("idempotency-key", "k1")];
    let found = server.client.call(Method::POST, "/v2/sandboxes", &again, Some(json!({ "templateID": "base" }))).await;
    assert_eq!((found.status, server.node.count()), (201, 2), "{found:?}");
}

#[tokio::test]
async fn a_sandbox_of_the_service_whose_client_hung_up_is_ended_unless_a_task_leads_to_it() {
    let server = Server::start().await;
    server.node.faults.create_takes.store(300, Ordering::Relaxed);
    let gone = hang_up_later(&server, "/api/v1/sandboxes", "", "{}").await;
    until("the node is asked", || async { server.node.creates.load(Ordering::Relaxed) == 1 }).await;
    drop(gone);
    until("it is made and removed", || async { server.node.executions() == 1 && server.node.count() == 0 }).await;
    let ended = async || {
        let rows = server.client.get("/api/v1/sandboxes?include_ended=true").await.json;
        rows["sandboxes"][0]["reason"].clone()
    };
    until("its row says why", || async { ended().await == "client_gone" }).await;

    let gone = hang_up_later(&server, "/api/v1/sandboxes", "", r#"{"agent_id":"a1","task_id":"t1"}"#).await;
    until("the node is asked", || async { server.node.creates.load(Ordering::Relaxed) == 2 }).await;
    drop(gone);
    let found = async || server.client.get("/api/v1/sandboxes?task_id=t1").await.json["sandboxes"][0]["status"].clone();
    until("the task's is running", || async { found().await == "running" }).await;
}
