//! The audit of operations outside the service: E2B's own API, runs and keys are in the same chain.

use crate::support;

use std::sync::atomic::Ordering;

use http::Method;
use isopod_store::Scope;
use serde_json::{Value, json};

use support::server::until;
use support::{Client, Server};

/// Returns the lines, oldest first, without those that reading them causes.
async fn lines(client: &Client) -> Vec<Value> {
    let listed = client.get("/api/v1/audit?limit=1000").await.json["lines"].clone();
    let lines = listed.as_array().unwrap().iter().rev();
    lines.filter(|line| line["action"] != "audit.list").cloned().collect()
}

/// Waits until there are this many. They are written a moment after their responses.
async fn have(client: &Client, count: usize) -> Vec<Value> {
    until("the lines are written", || async { lines(client).await.len() >= count }).await;
    let found = lines(client).await;
    assert_eq!(found.len(), count, "{found:#?}");
    found
}

fn words(lines: &[Value]) -> Vec<&str> {
    lines.iter().map(|line| line["action"].as_str().unwrap()).collect()
}

/// Every operation that changes something, with who, what, on which sandbox, from where and with what result.
#[tokio::test]
async fn what_e2bs_own_api_changes_is_in_the_chain() {
    let server = Server::start().await;
    let client = &server.client;
    let id = server.create(json!({ "timeout": 600 })).await;
    let at = |verb: &str| format!("/sandboxes/{id}/{verb}");
    client.post(&at("timeout"), json!({ "timeout": 60 })).await;
    client.post(&at("pause"), json!({})).await;
    client.post(&at("connect"), json!({ "timeout": 60 })).await;
    // Reading changes nothing.
    for path in ["/v2/sandboxes".to_owned(), format!("/sandboxes/{id}"), "/metrics".to_owned(), at("metrics")] {
        client.get(&path).await;
    }
    client.delete(&format!("/sandboxes/{id}")).await;
    client.delete("/sandboxes/inobody").await;
    let stranger = Client::new(server.address, "e2b_nobody");
    assert_eq!(stranger.delete(&format!("/sandboxes/{id}")).await.status, 401);

    let lines = have(client, 6).await;
    let expected = ["create", "set_timeout", "pause", "connect", "destroy", "destroy"];
    assert_eq!(words(&lines), expected.map(|verb| format!("sandbox.{verb}")));
    assert!(lines[..5].iter().all(|line| line["sandbox"] == json!(id)), "{lines:#?}");
    assert_eq!(
        (&lines[0]["status"], &lines[0]["code"], &lines[0]["source"]),
        (&json!(201), &json!(null), &json!("127.0.0.1"))
    );
    assert!(lines[0]["actor"].as_str().unwrap().starts_with("key:") && lines[0]["micros"].as_i64().unwrap() > 0);
    assert_eq!((&lines[5]["status"], &lines[5]["code"]), (&json!(404), &json!("not_found")));
    assert_eq!(lines[5]["sandbox"], "inobody");
    assert!(self::lines(&server.other_team().await).await.is_empty(), "another team sees nothing of it");
    let admin = server.key_of(Scope::Admin).await;
    assert_eq!(admin.get("/api/v1/audit/verify").await.json["broken_at"], json!(null));
}

/// The chain holds the lines of all teams.
#[tokio::test]
async fn a_team_key_that_verifies_the_chain_is_told_what_it_lacks() {
    let server = Server::start().await;
    for path in ["/api/v1/audit/verify", "/api/v1/audit/export"] {
        let refused = server.client.get(path).await;
        assert_eq!((refused.status, &refused.json["error_code"]), (403, &json!("scope_forbids")), "{path}");
        assert_eq!(refused.json["message"], "this route requires an admin key; yours has the scope team", "{path}");
        let reader = server.key_of(Scope::ReadOnly).await.get(path).await;
        let message = reader.json["message"].as_str().unwrap();
        assert!(message.starts_with("this route requires an admin key;"), "{path}: {message}");
    }
    let admin = server.key_of(Scope::Admin).await;
    assert_eq!(admin.get("/api/v1/audit/verify").await.status, 200);
}

#[tokio::test]
async fn runs_keys_and_templates_are_in_the_chain() {
    let server = Server::start().await;
    let client = &server.client;
    let called = client.post("/runtime/r1/execute", json!({ "code": "x", "agent_id": "ada" })).await;
    let sandbox = called.json["sandbox_id"].clone();
    client.put("/runtime/r1/files/a.txt", json!("x")).await;
    client.delete("/runtime/r1/cleanup").await;
    let key = client.post("/api-keys", json!({ "name": "ci" })).await.json;
    client.delete(&format!("/api-keys/{}", key["id"].as_str().unwrap())).await;
    client.delete("/templates/nobody").await;
    let flow = json!({ "nodes": [{ "id": "a", "command": "true", "approval": true }] });
    let run = client.post("/runtime/start", flow).await.json["run_id"].as_str().unwrap().to_owned();
    client.post(&format!("/runtime/{run}/stop"), json!({})).await;

    let lines = have(client, 8).await;
    let expected = [
        "run.execute",
        "run.write_file",
        "run.cleanup",
        "api_key.create",
        "api_key.revoke",
        "template.remove",
        "run.start",
        "run.stop",
    ];
    assert_eq!(words(&lines), expected);
    let first = &lines[0];
    assert_eq!((&first["sandbox"], &first["agent"], &first["task"]), (&sandbox, &json!("ada"), &json!("run/r1")));
    assert_eq!((&lines[5]["status"], &lines[7]["task"]), (&json!(404), &json!(format!("run/{run}"))));
    let text = serde_json::to_string(&lines).unwrap();
    assert!(!text.contains(key["key"].as_str().unwrap()), "a key is in the audit");
}

/// Keys without access to E2B's routes are known, and their attempts are audited.
#[tokio::test]
async fn a_key_without_the_right_is_noted_with_its_refusal() {
    let server = Server::start().await;
    let reader = server.key_of(Scope::ReadOnly).await;
    assert_eq!(reader.post("/v2/sandboxes", json!({ "templateID": "base" })).await.status, 403);
    let lines = have(&server.client, 1).await;
    assert_eq!((&lines[0]["action"], &lines[0]["code"]), (&json!("sandbox.create"), &json!("scope_forbids")));
}

/// A client that hangs up in the middle of a create is audited, and so is its request.
#[tokio::test]
async fn a_client_that_hangs_up_is_noted() {
    let server = Server::start().await;
    // Longer than it takes to notice that the client is gone.
    server.node.faults.create_takes.store(5000, Ordering::Relaxed);
    let client = server.client.clone();
    let asking = tokio::spawn(async move {
        let headers = [("x-api-key", client.key.as_str()), ("content-type", "application/json")];
        let body = json!({ "templateID": "base" }).to_string();
        let _ = client.open(Method::POST, "/v2/sandboxes", &headers, body.into()).await;
    });
    until("it is being made", || async { server.node.creates.load(Ordering::Relaxed) == 1 }).await;
    asking.abort();
    let lines = have(&server.client, 1).await;
    assert_eq!((&lines[0]["action"], &lines[0]["status"]), (&json!("sandbox.create"), &json!(499)));
    assert_eq!(lines[0]["code"], "client_gone");
}

/// What was answered before a server stops is in the chain afterwards, although no response waited for its line.
#[tokio::test]
async fn a_server_that_is_stopped_writes_what_it_has_queued() {
    let mut server = Server::start().await;
    let keys = (0..50).map(|number| server.client.post("/api-keys", json!({ "name": format!("k{number}") })));
    let made = futures::future::join_all(keys).await;
    assert!(made.iter().all(|answer| answer.status == 201));
    server.stop().await;
    let store = server.store();
    let chain = store.audit_chains().await.unwrap().remove(0);
    let verified = store.verify_audit(&chain.server).await.unwrap();
    assert_eq!((verified.lines, verified.broken_at), (50, None));
}

/// The handler of a GET also answers HEAD, so it has the same action.
#[tokio::test]
async fn a_head_request_of_the_service_is_audited_as_the_get_that_it_stands_for() {
    let server = Server::start().await;
    let answer = server.client.call(Method::HEAD, "/api/v1/sandboxes", &[], None).await;
    assert_eq!(answer.status, 200);
    assert_eq!(words(&have(&server.client, 1).await), ["sandbox.list"]);
}
