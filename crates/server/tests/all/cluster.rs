//! A cluster: any server answers for what any of them has, and the client notices nothing.

use crate::support;

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request};
use http_body_util::{BodyExt as _, Full};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use support::guest::HEAD_ECHO;
use support::server::until;
use support::{Cluster, Server};

const GUEST: u16 = 49983;

async fn three() -> Cluster {
    Cluster::start(&["alpha", "beta", "gamma"], |_| {}).await
}

async fn two() -> Cluster {
    Cluster::start(&["alpha", "beta"], |_| {}).await
}

#[tokio::test]
async fn every_server_answers_for_every_sandbox() {
    let cluster = three().await;
    let mut ids = Vec::new();
    for server in &cluster.servers {
        ids.push(server.create(json!({ "timeout": 600 })).await);
    }
    for asked in &cluster.servers {
        for (owner, id) in cluster.servers.iter().zip(&ids) {
            let client = &asked.client;
            let found = client.get(&format!("/sandboxes/{id}")).await;
            assert_eq!((found.status, found.json["sandboxID"].as_str()), (200, Some(&**id)), "{found:?}");
            assert_eq!(client.get(&format!("/v2/sandboxes/{id}/logs")).await.status, 200);
            assert_eq!(client.get(&format!("/sandboxes/{id}/metrics")).await.status, 200);
            let timeout = client.post(&format!("/sandboxes/{id}/timeout"), json!({ "timeout": 900 })).await;
            assert_eq!(timeout.status, 204, "{timeout:?}");
            let by_headers = client.inside(id, 8080, "/a?b=c").await;
            assert_eq!((by_headers.status, &by_headers.json["uri"]), (200, &json!("/a?b=c")), "{by_headers:?}");
            let by_path = client.get(&format!("/sandbox/{id}/8080/x")).await;
            assert_eq!((by_path.status, &by_path.json["uri"]), (200, &json!("/x")), "{by_path:?}");
            let host = format!("8080-{id}.isopod.localhost");
            let by_host = client.raw(Method::GET, "/y", &[("host", &host)], Bytes::new()).await;
            assert_eq!(by_host.json["headers"]["host"], json!(host), "{by_host:?}");
            assert_eq!(by_host.json["headers"]["x-forwarded-for"], "127.0.0.1");
            assert_eq!(client.inside(id, GUEST, "/health").await.status, 204);
            assert!(owner.node.state_of(id).is_some());
        }
    }
    // Ended through another one.
    for (server, id) in cluster.servers.iter().zip(ids.iter().rev()) {
        assert_eq!(server.client.delete(&format!("/sandboxes/{id}")).await.status, 204);
        let gone = server.client.get(&format!("/sandboxes/{id}")).await;
        assert_eq!(gone.status, 404, "{gone:?}");
        assert_eq!(server.client.inside(id, GUEST, "/health").await.status, 502);
    }
    assert!(cluster.servers.iter().all(|server| server.node.count() == 0));
}

#[tokio::test]
async fn a_known_way_asks_the_database_for_nothing() {
    let cluster = two().await;
    let [alpha, beta] = &cluster.servers[..] else { unreachable!() };
    let id = alpha.create(json!({ "timeout": 600 })).await;
    assert_eq!(beta.client.inside(&id, 8080, "/").await.status, 200);
    // The row says another server from now on, and nobody asks.
    cluster.sql(format!("UPDATE sandboxes SET server = 'nobody' WHERE id = '{id}'")).await;
    assert_eq!(beta.client.inside(&id, 8080, "/").await.status, 200);
    assert_eq!(beta.client.get(&format!("/sandboxes/{id}")).await.status, 200);
}

#[tokio::test]
async fn pauses_snapshots_and_forks_go_to_the_server_that_has_the_sandbox() {
    let cluster = two().await;
    let [alpha, beta] = &cluster.servers[..] else { unreachable!() };
    let id = alpha.create(json!({ "timeout": 600 })).await;
    let taken = beta.client.post(&format!("/sandboxes/{id}/snapshots"), json!({ "name": "snap" })).await;
    assert_eq!(taken.status, 201, "{taken:?}");
    assert_eq!(alpha.node.kept_snapshots().len(), 1);
    // A create from it goes where it is, although no path names it.
    let made = beta.client.post("/v2/sandboxes", json!({ "templateID": "snap" })).await;
    assert_eq!(made.status, 201, "{made:?}");
    assert_eq!((alpha.node.count(), beta.node.count()), (2, 0));
    assert_eq!(beta.client.post(&format!("/sandboxes/{id}/pause"), json!({})).await.status, 204);
    assert_eq!(beta.client.post(&format!("/sandboxes/{id}/connect"), json!({ "timeout": 60 })).await.status, 201);
}

#[tokio::test]
async fn a_session_is_found_by_its_key_on_any_server() {
    let cluster = two().await;
    let [alpha, beta] = &cluster.servers[..] else { unreachable!() };
    let body = json!({ "templateID": "base", "metadata": { "isopod.session": "s" } });
    let made = alpha.client.post("/v2/sandboxes", body.clone()).await;
    let again = beta.client.post("/v2/sandboxes", body).await;
    assert_eq!(made.json["sandboxID"], again.json["sandboxID"], "{again:?}");
    assert_eq!((alpha.node.count(), beta.node.count()), (1, 0));
}

#[tokio::test]
async fn runs_and_sandboxes_of_the_service_are_reached_from_any_server() {
    let cluster = two().await;
    let [alpha, beta] = &cluster.servers[..] else { unreachable!() };
    let first = support::runs::execute(alpha, "r", "1").await;
    let second = support::runs::execute(beta, "r", "2").await;
    assert_eq!(support::runs::sandbox_of(&first), support::runs::sandbox_of(&second), "{second:?}");
    assert_eq!((alpha.node.count(), beta.node.count()), (1, 0));
    assert_eq!(beta.client.delete("/runtime/r/cleanup").await.status, 200);
    until("the run's sandbox is gone", || async { alpha.node.count() == 0 }).await;
    let made = alpha.client.post("/api/v1/sandboxes", json!({})).await;
    let path = format!("/api/v1/sandboxes/{}", made.json["id"].as_str().unwrap());
    let found = beta.client.get(&path).await;
    assert_eq!((found.status, &found.json["id"]), (200, &made.json["id"]), "{found:?}");
    let ran = beta.client.post(&format!("{path}/execute"), json!({ "command": "true" })).await;
    assert_ne!(ran.status, 421, "{ran:?}");
    assert!(beta.client.delete(&path).await.status < 300);
}

#[tokio::test]
async fn a_request_is_audited_once_by_the_server_that_acts_and_has_one_id() {
    let cluster = two().await;
    let [alpha, beta] = &cluster.servers[..] else { unreachable!() };
    let id = alpha.create(json!({})).await;
    let of = |server: &Server| server.store().server_id().unwrap().to_owned();
    let snapshot = beta.client.post(&format!("/sandboxes/{id}/snapshots"), json!({ "name": "audited" })).await;
    assert_eq!(snapshot.headers.get_all("x-request-id").iter().count(), 1);
    // The first is found by its path, the second only by its handler.
    assert_eq!(beta.client.post("/v2/sandboxes", json!({ "templateID": "audited" })).await.status, 201);
    let lines = "SELECT server || ' ' || action || ' ' || source || ' ' || status FROM audit ORDER BY number";
    let expected = ["sandbox.create", "sandbox.snapshot", "sandbox.create"]
        .map(|action| format!("{} {action} 127.0.0.1 201", of(alpha)));
    until("the lines are there", || async { cluster.texts(lines).await.len() >= 3 }).await;
    assert_eq!(cluster.texts(lines).await, expected);
}

#[tokio::test]
async fn a_server_without_room_passes_creates_on() {
    let cluster = three().await;
    let [alpha, beta, gamma] = &cluster.servers[..] else { unreachable!() };
    let admin = alpha.key_of(isopod_store::Scope::Admin).await;
    assert_eq!(admin.post("/isopod/node/drain", json!({})).await.status, 200);
    for _ in 0..4 {
        let made = alpha.client.post("/v2/sandboxes", json!({ "templateID": "base" })).await;
        assert_eq!(made.status, 201, "{made:?}");
    }
    assert_eq!((alpha.node.count(), beta.node.count(), gamma.node.count()), (0, 2, 2), "the least loaded is first");
    for server in [beta, gamma] {
        let admin = server.key_of(isopod_store::Scope::Admin).await;
        assert_eq!(admin.post("/isopod/node/drain", json!({})).await.status, 200);
    }
    let refused = alpha.client.post("/v2/sandboxes", json!({ "templateID": "base" })).await;
    assert_eq!((refused.status, &refused.json["error_code"]), (503, &json!("server_draining")), "{refused:?}");
}

#[tokio::test]
async fn header_names_arrive_as_they_were_written_and_nobody_claims_to_be_a_server() {
    let cluster = two().await;
    let [alpha, beta] = &cluster.servers[..] else { unreachable!() };
    alpha.node.open_ports.lock().unwrap().insert(HEAD_ECHO);
    let id = alpha.create(json!({})).await;
    let mut stream = TcpStream::connect(beta.address).await.unwrap();
    let request = format!(
        "GET / HTTP/1.1\r\nHost: localhost\r\nE2b-Sandbox-Id: {id}\r\nE2b-Sandbox-Port: {HEAD_ECHO}\r\n\
         x-lower: 1\r\nX-UPPER: 2\r\nIsopod-Client-Address: 6.6.6.6\r\nIsopod-Client-Tls: 1\r\n\
         Isopod-Request-Id: mine\r\nX-Forwarded-For: 6.6.6.6\r\nConnection: close\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let (head, inside) = answer.split_once("\r\n\r\n").unwrap();
    for line in ["Host: localhost", "x-lower: 1", "X-UPPER: 2", "X-Forwarded-For: 127.0.0.1", "X-Forwarded-Proto: http"]
    {
        assert!(inside.lines().any(|seen| seen == line), "{line} is not in\n{inside}");
    }
    assert!(!inside.contains("X-Forwarded-For: 6.6.6.6"), "{inside}");
    for line in ["X-oDD-Name: 1", "set-cookie: a"] {
        assert!(head.lines().any(|seen| seen == line), "{line} is not in\n{head}");
    }
    assert!(head.contains("\r\nX-Request-Id: ") && !head.contains("mine"), "{head}");
}

/// Sends and receives more than all buffers on the way hold.
#[tokio::test]
async fn large_bodies_pass_both_ways() {
    let cluster = two().await;
    let [alpha, beta] = &cluster.servers[..] else { unreachable!() };
    let id = alpha.create(json!({})).await;
    let body = Bytes::from((0..40_u32 << 20).map(|byte| byte as u8).collect::<Vec<u8>>());
    for port in ["8080", "49983"] {
        let headers = [("e2b-sandbox-id", id.as_str()), ("e2b-sandbox-port", port)];
        let response = beta.client.open(Method::POST, "/echo", &headers, body.clone()).await;
        assert!(response.into_body().collect().await.unwrap().to_bytes() == body);
    }
}

#[tokio::test]
async fn a_stream_whose_client_does_not_read_is_not_kept_in_memory_and_its_end_arrives() {
    let cluster = two().await;
    let [alpha, beta] = &cluster.servers[..] else { unreachable!() };
    let id = alpha.create(json!({})).await;
    let mut stream = TcpStream::connect(beta.address).await.unwrap();
    let head = format!("host: 8080-{id}.localhost\r\nconnection: upgrade\r\nupgrade: websocket");
    stream.write_all(format!("GET /ws-flood HTTP/1.1\r\n{head}\r\n\r\n").as_bytes()).await.unwrap();
    let mut answer = [0; 12];
    stream.read_exact(&mut answer).await.unwrap();
    assert_eq!(&answer, b"HTTP/1.1 101");
    let printed = &alpha.node.printed;
    until("nothing is taken any more", || async { printed.is_flood_stuck.load(Relaxed) }).await;
    let taken = printed.flooded.load(Relaxed);
    assert!(taken < 32 << 20, "{taken} bytes");
    assert_eq!(beta.client.inside(&id, GUEST, "/health").await.status, 204, "others are served");
    drop(stream);
    until("its connection has ended", || async { printed.connections.load(Relaxed) <= 1 }).await;
}

#[tokio::test]
async fn websockets_pass_both_ways_until_the_sandbox_stops() {
    let cluster = two().await;
    let [alpha, beta] = &cluster.servers[..] else { unreachable!() };
    let id = alpha.create(json!({})).await;
    let mut tunnel = websocket(beta, &id).await;
    let mut buffer = [0; 5];
    for _ in 0..3 {
        tunnel.write_all(b"hello").await.unwrap();
        tunnel.read_exact(&mut buffer).await.unwrap();
        assert_eq!(&buffer, b"hello");
    }
    assert_eq!(beta.client.post(&format!("/sandboxes/{id}/pause"), json!({})).await.status, 204);
    let ended = tokio::time::timeout(Duration::from_secs(2), tunnel.read(&mut buffer)).await.unwrap();
    assert!(matches!(ended, Ok(0) | Err(_)), "{ended:?}");
}

async fn websocket(server: &Server, id: &str) -> TokioIo<hyper::upgrade::Upgraded> {
    let stream = TcpStream::connect(server.address).await.unwrap();
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection.with_upgrades());
    let request = Request::get("/ws")
        .header("host", format!("8080-{id}.localhost"))
        .header("connection", "Upgrade")
        .header("upgrade", "websocket");
    let mut response = sender.send_request(request.body(Full::<Bytes>::default()).unwrap()).await.unwrap();
    assert_eq!(response.status(), 101);
    TokioIo::new(hyper::upgrade::on(&mut response).await.unwrap())
}

#[tokio::test]
async fn a_client_that_leaves_is_noticed_in_the_sandbox() {
    let cluster = Cluster::start(&["alpha", "beta"], |config| config.control.connections.per_sandbox = 1).await;
    let [alpha, beta] = &cluster.servers[..] else { unreachable!() };
    let id = alpha.create(json!({})).await;
    let headers = [("e2b-sandbox-id", id.as_str()), ("e2b-sandbox-port", "8080")];
    let open = beta.client.open(Method::GET, "/stream", &headers, Bytes::new()).await;
    assert_eq!(beta.client.inside(&id, 8080, "/x").await.status, 429);
    drop(open);
    until("the place is free", || async { beta.client.inside(&id, 8080, "/x").await.status == 200 }).await;
}

#[tokio::test]
async fn a_connect_stream_ends_in_its_own_words_when_the_sandbox_stops() {
    let cluster = two().await;
    let [alpha, beta] = &cluster.servers[..] else { unreachable!() };
    let id = alpha.create(json!({})).await;
    let headers = [("e2b-sandbox-id", id.as_str()), ("e2b-sandbox-port", "8080")];
    let whole = beta.client.open(Method::POST, "/connect", &headers, Bytes::new()).await;
    let cut = beta.client.open(Method::POST, "/cut", &headers, Bytes::new()).await;
    assert_eq!(beta.client.post(&format!("/sandboxes/{id}/pause"), json!({})).await.status, 204);
    let body = whole.into_body().collect().await.unwrap().to_bytes();
    let end: Value = serde_json::from_slice(&body[12..]).unwrap();
    assert_eq!((body[7], &end["error"]["code"]), (2, &json!("unavailable")));
    assert!(cut.into_body().collect().await.is_err(), "nothing can follow half a frame");
}

/// The whole process is gone: nothing waits for a time to pass.
#[tokio::test]
async fn a_server_that_dies_in_the_middle_of_a_stream_ends_it_with_an_error_at_once() {
    let mut cluster = two().await;
    let id = cluster.servers[0].create(json!({})).await;
    let headers = [("e2b-sandbox-id", id.as_str()), ("e2b-sandbox-port", "8080")];
    let response = cluster.servers[1].client.open(Method::GET, "/stream", &headers, Bytes::new()).await;
    let mut body = response.into_body();
    assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), "first\n");
    let mut tunnel = websocket(&cluster.servers[1], &id).await;
    cluster.servers[0].crash().await;
    let next = tokio::time::timeout(Duration::from_secs(2), body.frame()).await;
    assert!(matches!(next, Ok(Some(Err(_)))), "{next:?}");
    let ended = tokio::time::timeout(Duration::from_secs(2), tunnel.read(&mut [0])).await.unwrap();
    assert!(matches!(ended, Ok(0) | Err(_)), "{ended:?}");
    // Later ones are told so at once, first because it does not answer, and then because its lease is over.
    let beta = &cluster.servers[1];
    for _ in 0..3 {
        let path = format!("/sandboxes/{id}");
        let refused = tokio::time::timeout(Duration::from_secs(2), beta.client.get(&path)).await.unwrap();
        assert_eq!((refused.status, &refused.json["error_code"]), (503, &json!("server_unreachable")), "{refused:?}");
        assert_eq!(refused.json["details"]["server"], "alpha");
        assert_eq!(refused.headers["should-retry"], "true");
        let inside = beta.client.inside(&id, 8080, "/").await;
        assert_eq!(inside.status, 503, "{inside:?}");
    }
    let alpha = cluster.servers.remove(0).start_again().await;
    let beta = &cluster.servers[0];
    until("it is back", || async { beta.client.inside(&id, 8080, "/").await.status == 200 }).await;
    assert_eq!(alpha.node.count(), 1);
}

#[tokio::test]
async fn a_wrong_guess_is_repaired_without_the_client_noticing() {
    let cluster = three().await;
    let [alpha, beta, gamma] = &cluster.servers[..] else { unreachable!() };
    let id = alpha.create(json!({ "timeout": 600 })).await;
    let of = |server: &Server| server.store().server_id().unwrap().to_owned();
    let say = |server: String| format!("UPDATE sandboxes SET server = '{server}' WHERE id = '{id}'");
    cluster.sql(say(of(gamma))).await;
    let lost = beta.client.inside(&id, 8080, "/echo").await;
    assert_eq!(lost.status, 502, "gamma does not have it: {lost:?}");
    // Now beta believes that gamma has it, and gamma learns from the database that alpha does.
    cluster.sql(say(of(alpha))).await;
    let headers = [("e2b-sandbox-id", id.as_str()), ("e2b-sandbox-port", "8080")];
    let sent = Bytes::from(vec![3; 300 << 10]);
    let repaired = beta.client.open(Method::POST, "/echo", &headers, sent.clone()).await;
    assert_eq!(repaired.status(), 200);
    assert!(repaired.into_body().collect().await.unwrap().to_bytes() == sent);
    assert_eq!(beta.client.get(&format!("/sandboxes/{id}")).await.status, 200);
}

/// Two servers that both believe that the other one has it.
#[tokio::test]
async fn a_request_goes_over_one_hop_at_most() {
    let cluster = two().await;
    let [alpha, beta] = &cluster.servers[..] else { unreachable!() };
    let id = alpha.create(json!({ "timeout": 600 })).await;
    let of = |server: &Server| server.store().server_id().unwrap().to_owned();
    assert_eq!(alpha.client.delete(&format!("/sandboxes/{id}")).await.status, 204);
    cluster.sql(format!("UPDATE sandboxes SET state = 'running', server = '{}' WHERE id = '{id}'", of(alpha))).await;
    let refused = beta.client.get(&format!("/sandboxes/{id}")).await;
    assert_eq!(refused.status, 404, "{refused:?}");
    cluster.sql(format!("UPDATE sandboxes SET server = '{}' WHERE id = '{id}'", of(beta))).await;
    let path = format!("/sandboxes/{id}");
    let refused = tokio::time::timeout(Duration::from_secs(5), beta.client.get(&path)).await;
    assert_eq!(refused.unwrap().status, 404);
    // Neither has it, and each is told that the other one does.
    let (mut asked, mut statuses) = (0, Vec::new());
    while asked < 4 {
        let owner = if asked % 2 == 0 { alpha } else { beta };
        cluster.sql(format!("UPDATE sandboxes SET server = '{}' WHERE id = '{id}'", of(owner))).await;
        statuses.push(beta.client.inside(&id, 8080, "/").await.status);
        asked += 1;
    }
    assert!(statuses.iter().all(|status| [502, 503].contains(status)), "{statuses:?}");
}

#[tokio::test]
async fn a_server_that_was_removed_is_refused_and_its_streams_end() {
    let cluster = two().await;
    let [alpha, beta] = &cluster.servers[..] else { unreachable!() };
    let id = alpha.create(json!({})).await;
    let headers = [("e2b-sandbox-id", id.as_str()), ("e2b-sandbox-port", "8080")];
    let mut body = beta.client.open(Method::GET, "/stream", &headers, Bytes::new()).await.into_body();
    assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), "first\n");
    assert!(alpha.store().remove_cluster_node(beta.store().server_id().unwrap()).await.unwrap());
    let next = tokio::time::timeout(Duration::from_secs(5), body.frame()).await;
    assert!(matches!(next, Ok(Some(Err(_)))), "{next:?}");
    let refused = beta.client.get(&format!("/sandboxes/{id}")).await;
    assert_eq!(refused.status, 503, "{refused:?}");
    assert_eq!(alpha.client.get(&format!("/sandboxes/{id}")).await.status, 200);
}
