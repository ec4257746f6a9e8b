//! Files of executions in sandboxes whose creator has no metadata of ours: by the variables that programs pass anyway,
//! or by the operator's default.

use crate::support;

use std::collections::BTreeMap;

use isopod_files::DefaultMounts;
use isopod_files::workspace::Workspace;
use isopod_wire::FeatureGrants;
use serde_json::{Value, json};

use support::server::until;
use support::{Client, Server};

const BUCKET: &str = "roma-storage";

/// The directory of the workspace must outlive the server.
async fn start_with(defaults: &'static [(&str, &str)]) -> (Server, tempfile::TempDir) {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().to_owned();
    let server = Server::start_with(move |config| {
        let table: BTreeMap<_, _> = defaults.iter().map(|(key, id)| ((*key).to_owned(), (*id).to_owned())).collect();
        let workspace = Workspace::new(&path).in_bucket(Some(BUCKET.to_owned()));
        config.control.workspace = Some(workspace.with_default_mounts(DefaultMounts::parse(table).unwrap()));
        config.control.features = FeatureGrants::parse(&[("*".to_owned(), vec!["fuse".to_owned()])].into()).unwrap();
    })
    .await;
    (server, root)
}

/// The path and the subtree of the only mount.
fn mounted(server: &Server, id: &str) -> Option<(String, String)> {
    let mounts = server.node.spec_of(id).unwrap().mounts;
    assert!(mounts.len() <= 1, "{mounts:?}");
    mounts.into_iter().next().map(|mount| (mount.path, mount.subtree))
}

fn at(path: &str, execution: &str) -> Option<(String, String)> {
    Some((format!("{path}/executions/{execution}"), format!("executions/{execution}")))
}

async fn warnings(client: &Client, id: &str) -> Vec<String> {
    let lines = client.get(&format!("/v2/sandboxes/{id}/logs")).await.json["logs"].clone();
    let warned = lines.as_array().unwrap().iter().filter(|line| line["level"] == "warn");
    warned.map(|line| line["message"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn a_plain_sandbox_gets_the_execution_that_its_variables_name() {
    let (server, _root) = start_with(&[]).await;
    for (env, path) in [
        (json!({ "STORAGE_BASE_PATH": "/opt/sentient", "S3_BUCKET": BUCKET, "EXECUTION_ID": "e1" }), "/opt/sentient"),
        (json!({ "ROMA_S3_BUCKET": BUCKET, "EXECUTION_ID": "e1" }), "/opt/sentient"),
        (json!({ "S3_BUCKET_NAME": BUCKET, "EXECUTION_ID": "e1" }), "/opt/sentient"),
        (json!({ "STORAGE_BASE_PATH": "/opt/sentient/dev/", "EXECUTION_ID": "e1" }), "/opt/sentient/dev"),
    ] {
        let id = server.create(json!({ "envVars": env })).await;
        assert_eq!(mounted(&server, &id), at(path, "e1"), "{env}");
        // Scripts that mount such files themselves say with this file that it is done.
        let ready = server.node.spec_of(&id).unwrap().mounts[0].ready_file.clone();
        assert_eq!(ready, Some(format!("{path}/.e2b_ready")), "{env}");
        // It is recorded as a sandbox of the execution, so that nobody removes the files under it.
        let detail = server.client.get(&format!("/sandboxes/{id}")).await.json;
        assert_eq!(detail["metadata"], json!({ "execution_id": "e1" }));
        assert_eq!(warnings(&server.client, &id).await, [""; 0]);
    }
    assert_eq!(server.client.delete("/api/v1/executions/e1").await.status, 409);
    // Metadata comes first. A name alone asks for nothing.
    let both =
        json!({ "metadata": { "execution_id": "e2" }, "envVars": { "S3_BUCKET": BUCKET, "EXECUTION_ID": "e1" } });
    let id = server.create(both).await;
    assert_eq!(mounted(&server, &id), at("/opt/sentient", "e2"));
    let id = server.create(json!({ "envVars": { "EXECUTION_ID": "e1" } })).await;
    assert_eq!(mounted(&server, &id), None);
}

#[tokio::test]
async fn an_execution_of_another_team_or_a_bad_id_is_refused() {
    let (server, _root) = start_with(&[]).await;
    server.create(json!({ "envVars": { "S3_BUCKET": BUCKET, "EXECUTION_ID": "ours" } })).await;
    let other = server.other_team().await;
    let create = |env: Value| json!({ "templateID": "base", "envVars": env });
    let theirs = other.post("/v2/sandboxes", create(json!({ "S3_BUCKET": BUCKET, "EXECUTION_ID": "ours" }))).await;
    assert_eq!(theirs.status, 404);
    assert!(theirs.text.contains("you don't have access to it"), "{}", theirs.text);
    for bad in ["../ours", "executions/ours", ".", &"x".repeat(129)] {
        let env = json!({ "STORAGE_BASE_PATH": "/opt/sentient", "EXECUTION_ID": bad });
        let refused = server.client.post("/v2/sandboxes", create(env)).await;
        assert_eq!(refused.status, 400, "{bad}");
        assert!(refused.text.contains("envVars: EXECUTION_ID must have 1 to 128 letters"), "{}", refused.text);
    }
    assert_eq!(server.node.count(), 1);
}

/// The code inside may mount them by itself, so they are no reason to refuse the sandbox.
#[tokio::test]
async fn files_that_are_not_of_this_server_are_left_to_the_sandbox_with_a_warning() {
    let (server, _root) = start_with(&[("*", "default-{team}")]).await;
    for (env, warning) in [
        (
            json!({ "S3_BUCKET": "elsewhere", "EXECUTION_ID": "e1" }),
            "S3_BUCKET is \"elsewhere\", not this server's workspace: nothing is mounted",
        ),
        (json!({ "STORAGE_BASE_PATH": "data", "EXECUTION_ID": "e1" }), "must be an absolute path other than /"),
        (json!({ "STORAGE_BASE_PATH": "/proc/x", "EXECUTION_ID": "e1" }), "is reserved for the sandbox's system"),
    ] {
        let id = server.create(json!({ "envVars": env })).await;
        assert_eq!(mounted(&server, &id), None, "{env}");
        until("the warning is in the log", || async { !warnings(&server.client, &id).await.is_empty() }).await;
        let found = warnings(&server.client, &id).await;
        assert!(found[0].contains(warning), "{env}: {found:?}");
    }
    let (server, _root) = start_with(&[]).await;
    let id = server.create(json!({ "envVars": { "STORAGE_BASE_PATH": "/opt/sentient" } })).await;
    assert_eq!(mounted(&server, &id), None);
    until("the warning is in the log", || async { !warnings(&server.client, &id).await.is_empty() }).await;
    assert!(warnings(&server.client, &id).await[0].starts_with("there is no EXECUTION_ID"));
}

#[tokio::test]
async fn a_default_mount_is_for_sandboxes_that_name_no_execution() {
    let (server, _root) = start_with(&[("*", "shared-{team}"), ("template:code-interpreter-v1", "code-{team}")]).await;
    let team = server.client.get("/api/v1/quota").await.json["team_id"].as_str().unwrap().to_owned();
    let id = server.create(json!({})).await;
    assert_eq!(mounted(&server, &id), at("/opt/sentient", &format!("shared-{team}")));
    let env = server.node.spec_of(&id).unwrap().env;
    assert_eq!((env["STORAGE_BASE_PATH"].as_str(), &env["EXECUTION_ID"]), ("/opt/sentient", &format!("shared-{team}")));
    let id = server.create(json!({ "templateID": "code-interpreter-v1" })).await;
    assert_eq!(mounted(&server, &id), at("/opt/sentient", &format!("code-{team}")));
    let id = server.create(json!({ "envVars": { "STORAGE_BASE_PATH": "/data" } })).await;
    assert_eq!(mounted(&server, &id), at("/data", &format!("shared-{team}")));
    let id = server.create(json!({ "metadata": { "execution_id": "e1" } })).await;
    assert_eq!(mounted(&server, &id), at("/opt/sentient", "e1"));
    // A sandbox that has the device cannot have a mount, and the default does not stand in its way.
    let id = server.create(json!({ "metadata": { "isopod.allow": "fuse" } })).await;
    assert_eq!(mounted(&server, &id), None);

    // Each team has files of its own.
    let other = server.other_team().await;
    let made = other.post("/v2/sandboxes", json!({ "templateID": "base" })).await;
    let (_, subtree) = mounted(&server, made.json["sandboxID"].as_str().unwrap()).unwrap();
    assert!(subtree.starts_with("executions/shared-") && subtree != format!("executions/shared-{team}"), "{subtree}");
}

/// Then the names belong to the client.
#[tokio::test]
async fn without_a_workspace_the_variables_mean_nothing() {
    let server = Server::start().await;
    let env = json!({ "STORAGE_BASE_PATH": "/opt/sentient", "S3_BUCKET": "b", "EXECUTION_ID": "../x" });
    let id = server.create(json!({ "envVars": env })).await;
    assert_eq!(mounted(&server, &id), None);
}
