//! What the edge reports to a guest about delivered output, and how it handles idle connections.

use crate::support;

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use bytes::Bytes;
use http::Method;
use http_body_util::BodyExt as _;
use isopod_wire::delivery::Report;
use serde_json::json;

use support::Server;
use support::server::until;

const CONNECT: &str = "/process.Process/Connect";
/// The first frame of the fake guest's output streams.
const FRAME: &[u8] = b"\0\0\0\0\x02{}";

fn inside(id: &str) -> [(&str, &str); 2] {
    [("e2b-sandbox-id", id), ("e2b-sandbox-port", "49983")]
}

async fn first_frame(body: &mut hyper::body::Incoming) -> Bytes {
    body.frame().await.unwrap().unwrap().into_data().unwrap()
}

async fn reported(server: &Server, report: Report) {
    until(&format!("{report:?} among {:?}", server.node.printed.reports.lock().unwrap()), || async {
        server.node.printed.reports.lock().unwrap().contains(&report)
    })
    .await;
}

#[tokio::test]
async fn what_was_sent_to_the_client_is_reported_to_the_guest() {
    let server = Server::start().await;
    let id = server.create(json!({})).await;
    let response = server.client.open(Method::POST, CONNECT, &inside(&id), Bytes::new()).await;
    assert!(response.headers().keys().all(|name| !name.as_str().starts_with("x-isopod")), "{response:?}");
    let mut body = response.into_body();
    assert_eq!(first_frame(&mut body).await, FRAME);
    reported(&server, Report { stream: 1, bytes: 7, last: false }).await;
    drop(body);
    reported(&server, Report { stream: 1, bytes: 7, last: true }).await;
}

#[tokio::test]
async fn what_a_client_that_left_has_not_acknowledged_is_taken_back() {
    // The frame, its chunk and the head are sent, but nothing of them arrives.
    let server = Server::start_with(|config| config.control.unacknowledged = |_| Ok(1 << 20)).await;
    let id = server.create(json!({})).await;
    let mut body = server.client.open(Method::POST, CONNECT, &inside(&id), Bytes::new()).await.into_body();
    assert_eq!(first_frame(&mut body).await, FRAME);
    reported(&server, Report { stream: 1, bytes: 7, last: false }).await;
    drop(body);
    reported(&server, Report { stream: 1, bytes: 0, last: true }).await;
}

#[tokio::test]
async fn clients_cannot_make_reports_or_name_channels() {
    let server = Server::start().await;
    let id = server.create(json!({})).await;
    assert_eq!(server.client.raw(Method::POST, "/delivery", &inside(&id), Bytes::new()).await.status, 404);
    let mut headers = inside(&id).to_vec();
    headers.extend([("x-isopod-delivery", "1"), ("x-isopod-stream", "1"), ("x-isopod-reports", "1")]);
    let answer = server.client.raw(Method::POST, "/x", &headers, Bytes::new()).await;
    assert!(!answer.text.contains("x-isopod"), "{}", answer.text);
}

#[tokio::test]
async fn a_stopping_server_ends_streams_in_their_own_words() {
    let mut server = Server::start().await;
    let id = server.create(json!({})).await;
    let mut body = server.client.open(Method::POST, CONNECT, &inside(&id), Bytes::new()).await.into_body();
    assert_eq!(first_frame(&mut body).await, FRAME);
    server.stop().await;
    let rest = body.collect().await.unwrap().to_bytes();
    let message = "the server is stopping; connect to the process again once it is back";
    assert_eq!(rest[0], 2);
    let end: serde_json::Value = serde_json::from_slice(&rest[5..]).unwrap();
    assert_eq!(end, json!({ "error": { "code": "unavailable", "message": message } }));
    // This text is not the guest's: what it printed meanwhile was not sent.
    reported(&server, Report { stream: 1, bytes: 7, last: true }).await;
    let reports = server.node.printed.reports.lock().unwrap();
    assert!(reports.iter().all(|report| report.bytes <= 7), "{reports:?}");
}

#[tokio::test]
async fn output_is_not_asked_for_while_nobody_can_say_what_of_it_arrives() {
    let server = Server::start().await;
    let id = server.create(json!({})).await;
    server.node.printed.hangs.store(true, Relaxed);
    let refused = server.client.raw(Method::POST, CONNECT, &inside(&id), Bytes::new()).await;
    assert_eq!((refused.status, server.node.printed.streams.load(Relaxed)), (502, 0), "{}", refused.text);
    server.node.printed.hangs.store(false, Relaxed);
    let mut body = server.client.open(Method::POST, CONNECT, &inside(&id), Bytes::new()).await.into_body();
    assert_eq!(first_frame(&mut body).await, FRAME);
}

#[tokio::test]
async fn idle_connections_into_a_sandbox_are_closed() {
    let server =
        Server::start_with(|config| config.control.connections.upstream_idle = Duration::from_millis(30)).await;
    let id = server.create(json!({})).await;
    let mut bodies = Vec::new();
    for _ in 0..20 {
        let mut body = server.client.open(Method::POST, CONNECT, &inside(&id), Bytes::new()).await.into_body();
        first_frame(&mut body).await;
        bodies.push(body);
        server.client.inside(&id, 49983, "/health").await;
    }
    let open = || async { server.node.printed.connections.load(Relaxed) };
    assert!(open().await >= 20, "one for each stream");
    drop(bodies);
    until("no connection is left", || async { open().await == 0 }).await;
    assert_eq!(server.client.inside(&id, 49983, "/health").await.status, 204);
}
