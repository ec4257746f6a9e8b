//! A drain: new sandboxes and resumes are refused, running sandboxes go on, paused ones are saved, and an admin ends it.

use crate::support;

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use isopod_store::Scope;
use isopod_wire::node::NodeState;
use serde_json::{Value, json};
use support::server::until;
use support::{Answer, Client, Server};

async fn drain(admin: &Client) -> Value {
    let answer = admin.post("/isopod/node/drain", json!({})).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.json
}

#[track_caller]
fn assert_draining(answer: &Answer) {
    assert_eq!((answer.status, &answer.json["error_code"]), (503, &json!("server_draining")), "{answer:?}");
    assert_eq!(answer.headers["retry-after"], "10");
}

async fn pause(client: &Client, id: &str, memory: bool) {
    assert_eq!(client.post(&format!("/sandboxes/{id}/pause"), json!({ "memory": memory })).await.status, 204);
}

#[tokio::test]
async fn nothing_is_created_or_resumed_until_an_admin_ends_it() {
    let server = Server::start().await;
    let (client, admin) = (&server.client, server.key_of(Scope::Admin).await);
    let session = json!({ "templateID": "base", "metadata": { "isopod.session": "mine" } });
    let running = server.create(json!({})).await;
    let paused = server.create(json!({ "autoPause": true, "autoResume": { "enabled": true } })).await;
    let held = client.post("/v2/sandboxes", session.clone()).await.json["sandboxID"].as_str().unwrap().to_owned();
    let snapshot = client.post(&format!("/sandboxes/{running}/snapshots"), json!({})).await;
    let snapshot = snapshot.json["snapshotID"].as_str().unwrap().to_owned();
    for id in [&paused, &held] {
        pause(client, id, true).await;
    }
    assert_eq!(client.post("/isopod/node/drain", json!({})).await.status, 403, "a team may not");
    for wrong in [json!({ "deadline": -1 }), json!({ "deadline": 3601 }), json!({ "until": 1 })] {
        assert_eq!(admin.post("/isopod/node/drain", wrong).await.status, 400);
    }
    let creates = server.node.creates.load(Relaxed);
    let drained = drain(&admin).await;
    let mut both = [paused.clone(), held.clone()];
    both.sort();
    assert_eq!(drained, json!({ "running": [running], "saved": both, "notSaved": [] }));
    assert_eq!(server.node.state_of(&paused), Some(NodeState::Saved));

    assert_draining(&client.post("/v2/sandboxes", json!({ "templateID": "base" })).await);
    assert_draining(&client.post("/v2/sandboxes", json!({ "templateID": snapshot })).await);
    assert_draining(&client.post("/v2/sandboxes", session.clone()).await);
    assert_draining(&client.post(&format!("/sandboxes/{running}/fork"), json!({})).await);
    assert_draining(&client.post(&format!("/v2/sandboxes/{paused}/connect"), json!({})).await);
    assert_draining(&client.post(&format!("/sandboxes/{paused}/resume"), json!({})).await);
    let traffic = client.inside(&paused, 8080, "/").await;
    assert_eq!((traffic.status, &traffic.headers["retry-after"]), (503, &"10".parse().unwrap()), "{traffic:?}");
    assert!(traffic.json["message"].as_str().unwrap().contains("drained for maintenance"), "{traffic:?}");
    let unavailable = client.post("/api/v1/sandboxes", json!({})).await;
    assert_eq!(unavailable.status, 503, "{unavailable:?}");
    assert_eq!((server.node.creates.load(Relaxed), server.node.state_of(&paused)), (creates, Some(NodeState::Saved)));

    // What runs can be used, and put back to a snapshot of it.
    assert_eq!(client.inside(&running, 8080, "/").await.status, 200);
    assert_eq!(client.post(&format!("/v2/sandboxes/{running}/connect"), json!({})).await.status, 200);
    let back = client.post(&format!("/sandboxes/{running}/rollback"), json!({ "snapshotID": snapshot })).await;
    assert_eq!(back.status, 204, "{back:?}");

    assert_eq!(client.post("/isopod/node/uncordon", json!({})).await.status, 403, "a team may not");
    assert_eq!(admin.post("/isopod/node/uncordon", json!({})).await.status, 204);
    assert_eq!(client.post(&format!("/v2/sandboxes/{paused}/connect"), json!({})).await.status, 201);
    assert_eq!(client.post("/v2/sandboxes", session).await.json["sandboxID"], held.as_str());
    server.create(json!({})).await;
}

#[tokio::test]
async fn what_cannot_be_saved_is_named_with_the_reason_and_what_pauses_later_is_saved_by_the_next_call() {
    let server = Server::start().await;
    let (client, admin) = (&server.client, server.key_of(Scope::Admin).await);
    let (paused, later, files) =
        (server.create(json!({})).await, server.create(json!({})).await, server.create(json!({})).await);
    pause(client, &paused, true).await;
    pause(client, &files, false).await;
    let reason = "process 12 (python3) has an io_uring open";
    *server.node.faults.undumpable.lock().unwrap() = Some(reason.to_owned());
    let not_saved = json!([{ "sandboxID": paused, "reason": reason }]);
    assert_eq!(drain(&admin).await, json!({ "running": [later], "saved": [files], "notSaved": not_saved }));
    *server.node.faults.undumpable.lock().unwrap() = None;
    pause(client, &later, true).await;
    let mut all = [paused, later, files];
    all.sort();
    assert_eq!(drain(&admin).await, json!({ "running": [], "saved": all, "notSaved": [] }));
}

#[tokio::test]
async fn a_deadline_ends_the_wait_but_not_the_work() {
    let server = Server::start().await;
    let admin = server.key_of(Scope::Admin).await;
    let paused = server.create(json!({})).await;
    pause(&server.client, &paused, true).await;
    server.node.faults.change_takes.store(500, Relaxed);
    let drained = admin.post("/isopod/node/drain", json!({ "deadline": 0 })).await.json;
    assert_eq!(drained["notSaved"], json!([{ "sandboxID": paused, "reason": "it is still being saved" }]));
    until("it is saved", || async { server.node.state_of(&paused) == Some(NodeState::Saved) }).await;
}

#[tokio::test]
async fn a_restart_ends_it() {
    let mut server = Server::start().await;
    let admin = server.key_of(Scope::Admin).await;
    drain(&admin).await;
    assert_draining(&server.client.post("/v2/sandboxes", json!({ "templateID": "base" })).await);
    server.stop().await;
    let server = server.start_again().await;
    tokio::time::timeout(Duration::from_secs(30), server.create(json!({}))).await.unwrap();
}
