//! Checkpoints of a run's sandbox, with a node that runs nothing.

use crate::support;

use serde_json::{Value, json};
use support::{Client, Server};

/// The template of the first checkpoint, which is the one without a name.
async fn ask_snapshot(client: &Client) -> Value {
    let listed = client.get("/snapshots").await.json;
    listed.as_array().unwrap().last().unwrap()["templateID"].clone()
}

#[tokio::test]
async fn a_run_has_checkpoints_until_it_is_cleaned_up() {
    let server = Server::start().await;
    let client = &server.client;
    let ask = async |verb: &str, body: Value| client.post(&format!("/runtime/run-1/{verb}"), body).await;
    assert_eq!(ask("rollback", json!({})).await.status, 404, "there is not even a sandbox");
    assert_eq!(server.node.count(), 0, "and none was created for it");
    let taken = ask("checkpoint", json!({})).await;
    assert_eq!((taken.status, &taken.json["name"]), (200, &json!("default")), "{taken:?}");
    assert_eq!(ask("checkpoint", json!({})).await.status, 200);
    assert_eq!(server.node.kept_snapshots().len(), 1, "it takes the place of the first one");
    assert_eq!(ask("checkpoint", json!({ "name": "Before: install" })).await.status, 200);
    assert_eq!(server.node.kept_snapshots().len(), 2);
    assert_eq!(ask("rollback", json!({ "name": "Before: install" })).await.json["status"], "rolled_back");
    assert_eq!(ask("rollback", json!({})).await.status, 200);
    assert_eq!(ask("rollback", json!({ "name": "after" })).await.status, 404);
    for name in ["", &"x".repeat(129)] {
        assert_eq!(ask("checkpoint", json!({ "name": name })).await.status, 400);
    }
    let sandbox = async || client.get("/runtime/run-1/session").await.json["sandbox_id"].as_str().unwrap().to_owned();
    let lost = sandbox().await;
    assert_eq!(client.delete(&format!("/sandboxes/{lost}")).await.status, 204);
    assert_eq!(ask("rollback", json!({})).await.status, 200, "a new one goes on from the checkpoint");
    let new = client.get(&format!("/sandboxes/{}", sandbox().await)).await.json;
    assert_eq!(server.node.count(), 1);
    assert_ne!(new["sandboxID"], json!(lost));
    assert_eq!(new["templateID"], ask_snapshot(client).await, "it was created from it");
    assert_eq!(ask("rollback", json!({})).await.status, 200);
    assert_ne!(sandbox().await, new["sandboxID"].as_str().unwrap(), "what the new one has done since is undone too");
    let path = format!("/sandboxes/{}/snapshots", sandbox().await);
    assert_eq!(client.post(&path, json!({ "name": "isopod-run-x" })).await.status, 400, "the server's own names");
    let others = server.other_team().await;
    assert_eq!(others.post("/runtime/run-1/rollback", json!({})).await.status, 404);
    *server.node.faults.no_memory.lock().unwrap() = Some("install CRIU".to_owned());
    for verb in ["checkpoint", "rollback"] {
        let refused = ask(verb, json!({})).await;
        assert_eq!(refused.status, 501);
        assert!(refused.json["message"].as_str().unwrap().contains("install CRIU"), "{refused:?}");
    }
    assert_eq!(client.delete("/runtime/run-1/cleanup").await.status, 200);
    assert_eq!((server.node.count(), server.node.kept_snapshots().len()), (0, 0));
}
