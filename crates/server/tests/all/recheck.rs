//! The running server compares its records with the node, in both directions.

use crate::support;

use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use isopod_wire::node::{Incarnation, NodeApi as _, NodeState, SandboxSpec};
use isopod_wire::{Limits, NetworkPolicy};
use serde_json::json;

use support::Server;
use support::server::until;

async fn start() -> Server {
    Server::start_with(|config| config.control.recheck_every = Duration::from_millis(30)).await
}

/// Waits for a few checks.
async fn looks() {
    tokio::time::sleep(Duration::from_millis(300)).await;
}

async fn status(server: &Server, id: &str) -> u16 {
    server.client.get(&format!("/sandboxes/{id}")).await.status
}

/// Creates a sandbox on the node behind the server's back.
async fn make(server: &Server, id: &str, owner: &str) -> Incarnation {
    let spec = SandboxSpec {
        sandbox: id.parse().unwrap(),
        template: "base".to_owned(),
        limits: Limits::default(),
        network: NetworkPolicy::default(),
        env: BTreeMap::new(),
        access_token: None,
        labels: BTreeMap::from([("isopod.owner".to_owned(), owner.to_owned())]),
        mounts: Vec::new(),
        features: Default::default(),
        snapshot: None,
    };
    server.node.create(spec).await.unwrap()
}

/// A row like that of `like`, without a controller.
async fn forge_row(server: &Server, like: &str, id: &str, execution: &str) {
    let script = format!(
        "CREATE TEMP TABLE copy AS SELECT * FROM sandboxes WHERE id = '{like}';
         UPDATE copy SET id = '{id}', execution = '{execution}';
         INSERT INTO sandboxes SELECT * FROM copy; DROP TABLE copy;"
    );
    server.sql(script).await;
}

#[tokio::test]
async fn a_sandbox_that_vanished_without_a_word_is_ended() {
    let server = start().await;
    let (id, other) = (server.create(json!({})).await, server.create(json!({})).await);
    server.client.post(&format!("/sandboxes/{other}/pause"), json!({})).await;
    server.node.lose(&id);
    server.node.lose(&other);
    until("both are gone", || async { status(&server, &id).await == 404 && status(&server, &other).await == 404 })
        .await;
    until("the reason is told", || async {
        server.client.get(&format!("/v2/sandboxes/{id}/logs")).await.text.contains("\"reason\":\"lost\"")
    })
    .await;
}

#[tokio::test]
async fn a_sandbox_without_a_row_is_removed_and_those_of_others_are_not() {
    let server = start().await;
    let kept = server.create(json!({})).await;
    make(&server, "istray", "server").await;
    make(&server, "iforeign", "someone").await;
    until("the stray is removed", || async { server.node.state_of("istray").is_none() }).await;
    looks().await;
    assert!(server.node.state_of("iforeign").is_some());
    assert_eq!(server.node.state_of(&kept), Some(NodeState::Running));
}

#[tokio::test]
async fn a_row_without_an_owner_gets_one_or_its_end() {
    // The interval is so long that no check happens between a sandbox and its row, which would remove it.
    let server = Server::start_with(|config| config.control.recheck_every = Duration::from_secs(2)).await;
    let like = server.create(json!({})).await;
    forge_row(&server, &like, "inowhere", "xnone").await;
    let life = make(&server, "iorphan", "server").await;
    forge_row(&server, &like, "iorphan", life.execution.as_str()).await;
    until("the orphan is adopted", || async { server.client.inside("iorphan", 8080, "/").await.status == 200 }).await;
    until("the other has ended", || async {
        server.client.get("/v2/sandboxes").await.json.as_array().unwrap().len() == 2
    })
    .await;
    assert_eq!(server.client.delete("/sandboxes/iorphan").await.status, 204);
    assert_eq!(server.node.count(), 1);
}

#[tokio::test]
async fn what_is_being_made_or_changed_is_left_alone() {
    let server = start().await;
    server.node.faults.create_takes.store(400, Relaxed);
    let id = server.create(json!({})).await;
    server.node.faults.change_takes.store(300, Relaxed);
    for round in 0..2 {
        let paused = server.client.post(&format!("/sandboxes/{id}/pause"), json!({ "memory": round == 0 })).await;
        assert_eq!(paused.status, 204);
        assert_eq!(server.client.post(&format!("/v2/sandboxes/{id}/connect"), json!({})).await.status, 201);
    }
    looks().await;
    assert_eq!(server.client.inside(&id, 8080, "/").await.status, 200);
    assert_eq!(server.node.count(), 1);
}
