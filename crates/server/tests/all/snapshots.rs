//! Snapshots, forks and rollbacks: what clients are told, what is inherited, and that nothing is left after a failure.

use crate::support;

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use isopod_store::Scope;
use isopod_wire::node::NodeState;
use serde_json::{Value, json};
use support::server::until;
use support::{Answer, Client, Server};
use tokio::net::TcpStream;

async fn snapshot(client: &Client, id: &str, body: Value) -> Answer {
    client.post(&format!("/sandboxes/{id}/snapshots"), body).await
}

async fn fork(client: &Client, id: &str, body: Value) -> Answer {
    client.post(&format!("/sandboxes/{id}/fork"), body).await
}

async fn rollback(client: &Client, id: &str, snapshot: &str) -> Answer {
    client.post(&format!("/sandboxes/{id}/rollback"), json!({ "snapshotID": snapshot })).await
}

/// A snapshot that succeeds. Returns its id.
async fn take(client: &Client, id: &str, body: Value) -> String {
    let taken = snapshot(client, id, body).await;
    assert_eq!(taken.status, 201, "{taken:?}");
    taken.json["snapshotID"].as_str().unwrap().to_owned()
}

async fn ids(client: &Client, query: &str) -> Vec<String> {
    let listed = client.get(&format!("/snapshots{query}")).await;
    assert_eq!(listed.status, 200, "{listed:?}");
    listed.json.as_array().unwrap().iter().map(|one| one["snapshotID"].as_str().unwrap().to_owned()).collect()
}

/// The status, and that the body says it too: E2B's SDKs read `code` and `message`.
fn refused(answer: &Answer) -> (u16, String) {
    assert_eq!(answer.json["code"], answer.status, "{answer:?}");
    (answer.status, answer.json["message"].as_str().unwrap().to_owned())
}

#[tokio::test]
async fn what_is_no_snapshot_is_refused_with_a_reason() {
    let server = Server::start().await;
    let client = &server.client;
    let id = server.create(json!({})).await;
    for bad in ["", "a b", "../x", "x/y/z", "a:", "a:b:c", "a:01234567-89ab-4cde-8f01-23456789abcd"] {
        assert_eq!(refused(&snapshot(client, &id, json!({ "name": bad })).await).0, 400, "{bad:?}");
    }
    let foreign = refused(&snapshot(client, &id, json!({ "name": "strangers/x" })).await);
    assert_eq!(foreign, (400, "'strangers' is not your team's namespace".to_owned()));
    assert_eq!(refused(&snapshot(client, &id, json!({ "memory": "yes" })).await).0, 400);
    let unknown = refused(&snapshot(client, "i0000000000000000000", json!({})).await);
    assert!(unknown.0 == 404 && unknown.1.contains("doesn't exist"), "{unknown:?}");
    let missing = client.post("/v2/sandboxes", json!({ "templateID": "nothing:default" })).await;
    assert_eq!(refused(&missing), (404, "template 'nothing:default' not found".to_owned()));
    for bad in ["?limit=0", "?limit=101", "?nextToken=%21", "?name=a%20b", "?name=strangers%2Fx"] {
        assert_eq!(refused(&client.get(&format!("/snapshots{bad}")).await).0, 400, "{bad}");
    }
    assert_eq!(client.post(&format!("/sandboxes/{id}/pause"), json!({})).await.status, 204);
    let paused = refused(&snapshot(client, &id, json!({})).await);
    assert_eq!(paused, (409, "the sandbox is paused; connect to it first".to_owned()));
    assert!(server.node.kept_snapshots().is_empty() && ids(client, "").await.is_empty());
    assert_eq!(client.delete(&format!("/sandboxes/{id}")).await.status, 204);
    assert_eq!(refused(&snapshot(client, &id, json!({})).await).0, 404);
}

#[tokio::test]
async fn a_snapshot_is_taken_listed_used_and_deleted() {
    let server = Server::start().await;
    let client = &server.client;
    let id = server.create(json!({ "envVars": { "A": "of the source" }, "metadata": { "m": "of the source" } })).await;
    let taken = snapshot(client, &id, json!({})).await;
    assert_eq!(
        (taken.status, &taken.json["names"], &taken.json["memory"]),
        (201, &json!([]), &json!(true)),
        "{taken:?}"
    );
    let snapshot_id = taken.json["snapshotID"].as_str().unwrap().to_owned();
    let template = snapshot_id.strip_suffix(":default").unwrap();
    assert_eq!((template.len(), &taken.json["templateID"]), (20, &json!(template)));
    assert_eq!(server.node.state_of(&id), Some(NodeState::Running));
    let kept = server.node.kept_snapshots();
    assert_eq!((kept.len(), kept[0].has_memory), (1, true));

    let listed = client.get("/snapshots").await.json;
    assert_eq!(listed.as_array().unwrap().len(), 1);
    assert_eq!((&listed[0]["snapshotID"], &listed[0]["names"]), (&json!(snapshot_id), &json!([])));
    let size = json!([listed[0]["bytes"], listed[0]["memoryBytes"]]);
    assert_eq!((&listed[0]["sandboxID"], size), (&json!(id), json!([5 << 20, 3 << 20])));
    let templates = client.get("/templates").await.json;
    assert!(templates.as_array().unwrap().iter().all(|one| one["templateID"] != template), "{templates}");

    let calls = (0..5).map(|number| {
        let body =
            json!({ "templateID": snapshot_id, "metadata": { "n": number.to_string() }, "envVars": { "B": "x" } });
        client.post("/v2/sandboxes", body)
    });
    for made in futures::future::join_all(calls).await {
        assert_eq!((made.status, &made.json["templateID"]), (201, &json!(template)), "{made:?}");
        let spec = server.node.spec_of(made.json["sandboxID"].as_str().unwrap()).unwrap();
        assert_eq!((spec.snapshot.map(|from| from.id).as_ref(), spec.template.as_str()), (Some(&kept[0].id), "base"));
        assert!(spec.env.contains_key("B") && !spec.env.contains_key("A"), "{:?}", spec.env);
    }
    assert_eq!(client.delete(&format!("/sandboxes/{id}")).await.status, 204);
    assert_eq!(
        client.post("/v2/sandboxes", json!({ "templateID": template })).await.status,
        201,
        "it outlives its source"
    );
    assert_eq!(ids(client, &format!("?sandboxID={id}")).await, [snapshot_id.as_str()]);

    let path = format!("/templates/{}", snapshot_id.replace(':', "%3A"));
    assert_eq!(client.delete(&path).await.status, 204, "although sandboxes from it run");
    assert_eq!(refused(&client.delete(&path).await).0, 404);
    assert!(server.node.kept_snapshots().is_empty() && ids(client, "").await.is_empty());
    assert_eq!(client.post("/v2/sandboxes", json!({ "templateID": snapshot_id })).await.status, 404);
    assert_eq!(client.get("/v2/sandboxes").await.json.as_array().unwrap().len(), 6);
}

#[tokio::test]
async fn a_name_moves_to_the_latest_snapshot_and_tags_keep_earlier_ones() {
    let server = Server::start().await;
    let client = &server.client;
    let id = server.create(json!({})).await;
    let first = snapshot(client, &id, json!({ "name": "My-Snap" })).await;
    assert_eq!((&first.json["snapshotID"], &first.json["names"]), (&json!("my-snap:default"), &json!(["my-snap"])));
    let before = client.get("/templates/my-snap:default/tags").await.json;
    let made_of = async |name: &str| {
        let made = client.post("/v2/sandboxes", json!({ "templateID": name })).await;
        assert_eq!((made.status, &made.json["alias"]), (201, &json!("my-snap")), "{made:?}");
        server.node.spec_of(made.json["sandboxID"].as_str().unwrap()).unwrap().snapshot.unwrap().id
    };
    let old = made_of("my-snap").await;
    let second = snapshot(client, &id, json!({ "name": "default/my-snap" })).await;
    assert_eq!(second.json["snapshotID"], "my-snap:default");
    assert_eq!(second.json["templateID"], first.json["templateID"]);
    let after = client.get("/templates/my-snap:default/tags").await.json;
    assert_ne!(before[0]["buildID"], after[0]["buildID"], "the tag names another build");
    let new = made_of("my-snap").await;
    assert_ne!(new, old);
    let earlier = format!("my-snap:{}", first.json["buildID"].as_str().unwrap());
    assert_eq!(made_of(&earlier).await, old, "by the id of its build");
    assert_eq!(take(client, &id, json!({ "name": "my-snap:v1" })).await, "my-snap:v1");
    assert_eq!(made_of("my-snap").await, new);
    assert_ne!(made_of("my-snap:v1").await, new);
    assert_eq!(ids(client, "").await, ["my-snap:v1"], "one entry a name, with the tag of the latest");
    assert_eq!(ids(client, "?name=my-snap").await, ["my-snap:v1"]);
    assert_eq!(ids(client, "?name=my-snap%3Adefault").await, ["my-snap:default"]);
    assert_eq!(ids(client, "?name=default%2Fmy-snap").await, ["my-snap:v1"]);
    assert_eq!(ids(client, &format!("?name={}", first.json["templateID"].as_str().unwrap())).await, ["my-snap:v1"]);
    assert!(ids(client, "?name=my-snap-does-not-exist").await.is_empty());
    assert_eq!(client.delete("/templates/my-snap%3Av1").await.status, 204, "the tag does not matter");
    assert!(server.node.kept_snapshots().is_empty() && ids(client, "").await.is_empty());
}

#[tokio::test]
async fn the_list_has_pages_and_filters() {
    let server = Server::start().await;
    let client = &server.client;
    let (one, two) = (server.create(json!({})).await, server.create(json!({})).await);
    let mut taken = Vec::new();
    for number in 0..5 {
        taken.push(take(client, if number % 2 == 0 { &one } else { &two }, json!({})).await);
    }
    taken.reverse();
    let (mut seen, mut query) = (Vec::new(), "?limit=2".to_owned());
    loop {
        let page = client.get(&format!("/snapshots{query}")).await;
        seen.extend(page.json.as_array().unwrap().iter().map(|one| one["snapshotID"].as_str().unwrap().to_owned()));
        let Some(token) = page.headers.get("x-next-token") else { break };
        query = format!("?limit=2&nextToken={}", token.to_str().unwrap());
    }
    assert_eq!(seen, taken, "latest first");
    assert_eq!(ids(client, &format!("?sandboxID={two}")).await, [taken[1].clone(), taken[3].clone()]);
    assert!(ids(client, "?sandboxID=i0000000000000000000").await.is_empty());
}

#[tokio::test]
async fn templates_and_snapshots_do_not_take_each_others_place() {
    let server = Server::start().await;
    let client = &server.client;
    let id = server.create(json!({})).await;
    let built = client.post("/v3/templates", json!({ "name": "web" })).await;
    assert_eq!(built.status, 202);
    let taken = snapshot(client, &id, json!({ "name": "web" })).await;
    assert_eq!(refused(&taken), (409, "the name 'web' belongs to a template; choose another one".to_owned()));
    take(client, &id, json!({ "name": "snap" })).await;
    assert_eq!(refused(&client.post("/v3/templates", json!({ "name": "snap" })).await).0, 400);
    let public = client.call(http::Method::PATCH, "/v2/templates/snap", &[], Some(json!({ "public": true }))).await;
    assert_eq!(refused(&public).0, 400, "its memory may have secrets");
    assert_eq!(refused(&client.get("/isopod/templates/snap/image").await).0, 400);
    let web = client.post("/v3/templates", json!({ "name": "other" })).await.json;
    let start =
        format!("/v2/templates/{}/builds/{}", web["templateID"].as_str().unwrap(), web["buildID"].as_str().unwrap());
    let from = client.post(&start, json!({ "fromTemplate": "snap", "steps": [] })).await;
    assert!(refused(&from).1.contains("is a snapshot of a sandbox"), "{from:?}");
    assert_eq!(refused(&client.delete("/templates/web:v1").await).0, 400, "only snapshots are named with a tag");
}

#[tokio::test]
async fn a_fork_gives_copies_with_what_the_source_has() {
    let server = Server::start().await;
    let client = &server.client;
    let fields = json!({
        "timeout": 100, "autoPause": true, "autoResume": { "enabled": true }, "allow_internet_access": false,
        "metadata": { "user": "ada", "isopod.session": "s" }, "envVars": { "SECRET": "x" },
        "network": { "allowOut": ["1.1.1.1"], "allowPublicTraffic": false },
    });
    let id = server.create(fields.clone()).await;
    let source = client.get(&format!("/sandboxes/{id}")).await.json;
    let forked = fork(client, &id, json!({ "count": 3, "timeout": 60 })).await;
    assert_eq!((forked.status, forked.json.as_array().unwrap().len()), (201, 3), "{forked:?}");
    let mut seen = HashSet::from([id.clone()]);
    let mut tokens = HashSet::from([source["envdAccessToken"].as_str().unwrap().to_owned()]);
    for item in forked.json.as_array().unwrap() {
        let copy = &item["sandbox"];
        assert_eq!((&copy["templateID"], item.get("error")), (&json!("base"), None), "{item}");
        let copied = copy["sandboxID"].as_str().unwrap();
        assert!(seen.insert(copied.to_owned()), "{copied} is there twice");
        assert!(tokens.insert(copy["envdAccessToken"].as_str().unwrap().to_owned()));
        assert!(copy["trafficAccessToken"].is_string() && copy["domain"].is_string());
        let detail = client.get(&format!("/sandboxes/{copied}")).await.json;
        assert_eq!((&detail["state"], &detail["metadata"]), (&json!("running"), &json!({ "user": "ada" })));
        for same in ["lifecycle", "network", "allowInternetAccess", "cpuCount", "memoryMB", "alias"] {
            assert_eq!(detail[same], source[same], "{same}");
        }
        let spec = server.node.spec_of(copied).unwrap();
        assert_eq!(spec.env["SECRET"], "x");
        assert_eq!(client.inside(copied, 49983, "/health").await.status, 204);
    }
    assert_eq!(
        client.get(&format!("/sandboxes/{id}")).await.json["endAt"],
        source["endAt"],
        "the source keeps its end"
    );
    assert!(ids(client, "").await.is_empty(), "no snapshot is seen");
    until("its snapshot is gone", || async { server.node.kept_snapshots().is_empty() }).await;
    let again = server.create(fields).await;
    assert_eq!(again, id, "the session has its sandbox");
}

#[tokio::test]
async fn a_fork_without_a_body_is_one_copy_for_as_long_as_its_version_says() {
    let server = Server::start().await;
    let id = server.create(json!({})).await;
    for (version, seconds) in [("", 15), ("/v2", 300)] {
        let path = format!("{version}/sandboxes/{id}/fork");
        let forked = server.client.call(http::Method::POST, &path, &[], None).await;
        assert_eq!((forked.status, forked.json.as_array().unwrap().len()), (201, 1), "{forked:?}");
        let copied = forked.json[0]["sandbox"]["sandboxID"].as_str().unwrap();
        let detail = server.client.get(&format!("/sandboxes/{copied}")).await.json;
        let at = |name: &str| isopod_store::clock::Timestamp::parse_rfc3339(detail[name].as_str().unwrap()).unwrap();
        assert_eq!(at("startedAt").until(at("endAt")), Duration::from_secs(seconds), "{path}");
    }
}

/// The node would refuse to save memory, and to start from it.
#[tokio::test]
async fn a_fork_without_memory_needs_none_saved_and_copies_what_else_the_source_has() {
    let server = Server::start().await;
    let client = &server.client;
    let id = server.create(json!({ "metadata": { "user": "ada" }, "envVars": { "SECRET": "x" } })).await;
    *server.node.faults.no_memory.lock().unwrap() = Some("criu was not found".to_owned());
    *server.node.faults.undumpable.lock().unwrap() = Some("process 12 (python3) has an io_uring open".to_owned());
    for version in ["", "/v2"] {
        let path = format!("{version}/sandboxes/{id}/fork");
        assert_eq!(refused(&client.post(&path, json!({ "memory": true })).await).0, 501);
        let forked = client.post(&path, json!({ "count": 2, "timeout": 60, "memory": false })).await;
        assert_eq!((forked.status, forked.json.as_array().unwrap().len()), (201, 2), "{forked:?}");
        for item in forked.json.as_array().unwrap() {
            let copied = item["sandbox"]["sandboxID"].as_str().unwrap();
            let detail = client.get(&format!("/sandboxes/{copied}")).await.json;
            assert_eq!((&detail["state"], &detail["metadata"]), (&json!("running"), &json!({ "user": "ada" })));
            assert_eq!(server.node.spec_of(copied).unwrap().env["SECRET"], "x");
        }
    }
    assert!(server.node.kept_snapshots().is_empty() && ids(client, "").await.is_empty(), "no snapshot is seen");
}

#[tokio::test]
async fn a_fork_that_cannot_be_is_refused_before_anything_is_made() {
    let server = Server::start().await;
    let client = &server.client;
    let id = server.create(json!({})).await;
    for count in [json!(0), json!(-1), json!(21), json!(1.5), json!("2")] {
        assert_eq!(refused(&fork(client, &id, json!({ "count": count })).await).0, 400, "{count}");
    }
    assert_eq!(refused(&fork(client, &id, json!({ "timeout": 90_000_000 })).await).0, 400);
    assert_eq!(client.post(&format!("/sandboxes/{id}/pause"), json!({})).await.status, 204);
    assert_eq!(
        refused(&fork(client, &id, json!({})).await),
        (409, "the sandbox is paused; connect to it first".to_owned())
    );
    assert_eq!(client.delete(&format!("/sandboxes/{id}")).await.status, 204);
    let gone = refused(&fork(client, &id, json!({})).await);
    assert!(gone.0 == 404 && gone.1.contains(&id), "{gone:?}");
    assert_eq!((server.node.count(), server.node.kept_snapshots().len()), (0, 0));
}

#[tokio::test]
async fn each_copy_fails_on_its_own() {
    let server = Server::start_with(|config| config.control.team_limits.concurrent = 3).await;
    let client = &server.client;
    let id = server.create(json!({})).await;
    let forked = fork(client, &id, json!({ "count": 4 })).await;
    assert_eq!((forked.status, forked.json.as_array().unwrap().len()), (201, 4), "{forked:?}");
    let errors: Vec<&Value> = forked.json.as_array().unwrap().iter().filter_map(|item| item.get("error")).collect();
    assert_eq!(errors.len(), 2, "{forked:?}");
    for error in errors {
        let message = "you have reached the maximum number of concurrent sandboxes (3)";
        assert_eq!(error, &json!({ "code": 429, "message": message }));
    }
    assert_eq!(client.get("/v2/sandboxes").await.json.as_array().unwrap().len(), 3);
    for item in forked.json.as_array().unwrap() {
        if let Some(copied) = item["sandbox"]["sandboxID"].as_str() {
            assert_eq!(client.delete(&format!("/sandboxes/{copied}")).await.status, 204);
        }
    }
    server.node.faults.restores_fail.store(1, Relaxed);
    let forked = fork(client, &id, json!({ "count": 2 })).await;
    let errors: Vec<&Value> = forked.json.as_array().unwrap().iter().filter_map(|item| item.get("error")).collect();
    assert_eq!((errors.len(), &errors[0]["code"]), (1, &json!(409)), "{forked:?}");
    assert!(errors[0]["message"].as_str().unwrap().contains("libc.so.6"), "{forked:?}");
    assert_eq!(server.node.count(), 2);
    until("its snapshot is gone", || async { server.node.kept_snapshots().is_empty() }).await;
}

#[tokio::test]
async fn memory_that_cannot_be_saved_is_a_conflict_that_names_the_reason() {
    let server = Server::start().await;
    let client = &server.client;
    let id = server.create(json!({})).await;
    let reason = "process 12 (python3) has an io_uring open";
    *server.node.faults.undumpable.lock().unwrap() = Some(reason.to_owned());
    for answer in [snapshot(client, &id, json!({ "name": "a" })).await, fork(client, &id, json!({})).await] {
        let (status, message) = refused(&answer);
        assert!(status == 409 && message.contains(reason), "{answer:?}");
        assert_eq!(answer.headers["should-retry"], "false");
    }
    assert_eq!(client.inside(&id, 8080, "/").await.status, 200, "the source goes on");
    assert!(server.node.kept_snapshots().is_empty() && ids(client, "").await.is_empty());
    assert_eq!(client.get("/templates/a").await.status, 404, "nothing of the name is left");
    assert_eq!(take(client, &id, json!({ "name": "a", "memory": false })).await, "a:default");
    assert!(!server.node.kept_snapshots()[0].has_memory);
}

#[tokio::test]
async fn a_node_that_cannot_save_memory_says_what_to_do_and_keeps_files() {
    let server = Server::start().await;
    let client = &server.client;
    let id = server.create(json!({})).await;
    let fix = "criu was not found; install CRIU 4.3 or later";
    *server.node.faults.no_memory.lock().unwrap() = Some(fix.to_owned());
    for answer in [snapshot(client, &id, json!({})).await, fork(client, &id, json!({})).await] {
        let (status, message) = refused(&answer);
        assert!(status == 501 && message.contains(fix), "{answer:?}");
        assert_eq!(answer.headers["should-retry"], "false");
    }
    assert!(refused(&snapshot(client, &id, json!({})).await).1.contains("`memory: false`"));
    let files = take(client, &id, json!({ "memory": false })).await;
    assert_eq!(client.post("/v2/sandboxes", json!({ "templateID": files })).await.status, 201);
    assert_eq!(rollback(client, &id, &files).await.status, 204);
    *server.node.faults.no_memory.lock().unwrap() = None;
    let memory = take(client, &id, json!({})).await;
    *server.node.faults.no_memory.lock().unwrap() = Some(fix.to_owned());
    let created = client.post("/v2/sandboxes", json!({ "templateID": memory })).await;
    for answer in [rollback(client, &id, &memory).await, created] {
        let (status, message) = refused(&answer);
        assert_eq!((status, &answer.json["error_code"]), (501, &json!("memory_snapshots_unavailable")), "{answer:?}");
        assert!(message.contains(fix) && message.contains("with `memory: false`"), "{message}");
        assert_eq!(answer.headers["should-retry"], "false");
    }
    only_files(&server, &id, &memory).await;
}

/// A create and a rollback from the files of a snapshot that has memory.
async fn only_files(server: &Server, id: &str, snapshot: &str) {
    let client = &server.client;
    let body = json!({ "templateID": snapshot, "memory": false });
    for path in ["/v2/sandboxes", "/sandboxes"] {
        let created = client.post(path, body.clone()).await;
        assert_eq!(created.status, 201, "{created:?}");
        let spec = server.node.spec_of(created.json["sandboxID"].as_str().unwrap()).unwrap();
        assert!(spec.snapshot.unwrap().files_only);
    }
    let body = json!({ "snapshotID": snapshot, "memory": false });
    let back = client.post(&format!("/sandboxes/{id}/rollback"), body).await;
    assert_eq!(back.status, 204, "{back:?}");
}

#[tokio::test]
async fn memory_that_cannot_be_restored_is_a_conflict_that_names_the_files() {
    let server = Server::start().await;
    let client = &server.client;
    let id = server.create(json!({})).await;
    let memory = take(client, &id, json!({})).await;
    server.node.faults.restores_fail.store(1, Relaxed);
    let created = client.post("/v2/sandboxes", json!({ "templateID": memory })).await;
    *server.node.faults.undumpable.lock().unwrap() = Some("the library libc.so.6 has changed".to_owned());
    let back = rollback(client, &id, &memory).await;
    for (answer, code) in [(created, "snapshot_memory_not_restorable"), (back, "memory_not_saved")] {
        let (status, message) = refused(&answer);
        assert_eq!((status, &answer.json["error_code"]), (409, &json!(code)), "{answer:?}");
        assert!(message.contains("libc.so.6 has changed") && message.contains("with `memory: false`"), "{message}");
    }
    server.node.faults.restores_fail.store(5, Relaxed);
    only_files(&server, &id, &memory).await;
    assert_eq!(server.node.faults.restores_fail.load(Relaxed), 5, "none was attempted");
    // A template has no memory to leave.
    let plain = client.post("/v2/sandboxes", json!({ "templateID": "base", "memory": false })).await;
    assert_eq!(plain.status, 201, "{plain:?}");
    assert_eq!(client.post("/v2/sandboxes", json!({ "templateID": memory, "memory": "no" })).await.status, 400);
}

#[tokio::test]
async fn a_pause_never_says_409_but_for_one_that_is_paused() {
    let server = Server::start_with(|config| config.control.node_timeout = Duration::from_millis(50)).await;
    let id = server.create(json!({})).await;
    let path = format!("/sandboxes/{id}/pause");
    server.node.faults.change_takes.store(500, Relaxed);
    assert_eq!(server.client.post(&path, json!({})).await.status, 504);
    let busy = server.client.post(&path, json!({})).await;
    assert_eq!((busy.status, busy.headers["should-retry"].to_str().unwrap()), (503, "true"), "{busy:?}");
}

#[tokio::test]
async fn teams_see_only_their_own_snapshots() {
    let server = Server::start().await;
    let others = server.other_team().await;
    let id = server.create(json!({})).await;
    let taken = snapshot(&server.client, &id, json!({ "name": "secret" })).await;
    let by_id = taken.json["templateID"].as_str().unwrap().to_owned();
    assert_eq!(refused(&snapshot(&others, &id, json!({})).await).0, 404);
    assert_eq!(refused(&fork(&others, &id, json!({})).await).0, 404);
    assert_eq!(refused(&rollback(&others, &id, "secret").await).0, 404);
    assert!(ids(&others, "").await.is_empty() && ids(&others, &format!("?sandboxID={id}")).await.is_empty());
    for name in ["secret", "secret:default", "default/secret", &by_id, &format!("{by_id}:default")] {
        let made = others.post("/v2/sandboxes", json!({ "templateID": name })).await;
        assert_eq!(refused(&made).0, 404, "{name}");
        let removed = others.delete(&format!("/templates/{}", name.replace('/', "%2F"))).await;
        assert_eq!(refused(&removed).0, 404, "{name}");
    }
    assert_eq!(ids(&server.client, "").await, ["secret:default"]);
    let mine = others.post("/v2/sandboxes", json!({ "templateID": "base" })).await.json;
    let mine = mine["sandboxID"].as_str().unwrap();
    assert_eq!(take(&others, mine, json!({ "name": "secret" })).await, "secret:default", "names are a team's own");
}

#[tokio::test]
async fn a_key_of_another_scope_is_refused() {
    let server = Server::start().await;
    let id = server.create(json!({})).await;
    let kept = take(&server.client, &id, json!({})).await;
    let reader = server.key_of(Scope::ReadOnly).await;
    for answer in [
        reader.get("/snapshots").await,
        snapshot(&reader, &id, json!({})).await,
        fork(&reader, &id, json!({})).await,
        rollback(&reader, &id, &kept).await,
        reader.delete(&format!("/templates/{kept}")).await,
    ] {
        assert_eq!((answer.status, &answer.json["error_code"]), (403, &json!("scope_forbids")), "{answer:?}");
    }
    let nobody = Client::new(server.address, "e2b_ffffffffffffffffffffffffffffffffffffffff");
    assert_eq!(nobody.get("/snapshots").await.status, 401);
}

#[tokio::test]
async fn a_team_has_only_so_many_snapshots() {
    let server = Server::start_with(|config| config.control.team_limits.snapshots = 2).await;
    let client = &server.client;
    let id = server.create(json!({})).await;
    take(client, &id, json!({})).await;
    let second = take(client, &id, json!({ "name": "a" })).await;
    let full = snapshot(client, &id, json!({ "name": "a" })).await;
    assert_eq!(refused(&full), (429, "the team already has 2 snapshots; delete some of them first".to_owned()));
    assert_eq!(
        (&full.json["error_code"], &full.headers["should-retry"]),
        (&json!("too_many_snapshots"), &"false".parse().unwrap())
    );
    assert_eq!(fork(client, &id, json!({})).await.status, 201, "a fork keeps nothing");
    assert_eq!(client.delete(&format!("/templates/{second}")).await.status, 204);
    take(client, &id, json!({})).await;
}

#[tokio::test]
async fn a_teams_snapshots_have_only_so_much_memory() {
    // Each has 3 MiB.
    let server = Server::start_with(|config| config.control.team_limits.snapshot_memory = Some(7 << 20)).await;
    let client = &server.client;
    let id = server.create(json!({})).await;
    let first = take(client, &id, json!({})).await;
    let named = take(client, &id, json!({ "name": "a" })).await;
    let large = snapshot(client, &id, json!({ "name": "a" })).await;
    let message = "the memory of the team's snapshots may take 7M together; delete some of them first";
    assert_eq!(refused(&large), (429, message.to_owned()));
    assert_eq!(
        (&large.json["error_code"], &large.headers["should-retry"]),
        (&json!("snapshots_too_large"), &"false".parse().unwrap())
    );
    assert_eq!(server.node.kept_snapshots().len(), 2, "the node keeps nothing of it");
    take(client, &id, json!({ "memory": false })).await;
    assert_eq!(fork(client, &id, json!({})).await.status, 201, "a fork keeps nothing");
    assert_eq!(client.delete(&format!("/templates/{first}")).await.status, 204);
    assert_eq!(take(client, &id, json!({ "name": "a" })).await, named);
}

#[tokio::test]
async fn the_files_of_a_teams_snapshots_take_only_so_much_with_memory_or_without() {
    // Those of each take 2 MiB.
    let server = Server::start_with(|config| config.control.team_limits.snapshot_disk = Some(5 << 20)).await;
    let client = &server.client;
    let id = server.create(json!({})).await;
    let first = take(client, &id, json!({})).await;
    take(client, &id, json!({ "memory": false })).await;
    for body in [json!({}), json!({ "memory": false, "name": "a" })] {
        let large = snapshot(client, &id, body).await;
        let message = "the files of the team's snapshots may take 5M together; delete some of them first";
        assert_eq!(refused(&large), (429, message.to_owned()));
        assert_eq!(
            (&large.json["error_code"], &large.headers["should-retry"]),
            (&json!("snapshots_too_large"), &"false".parse().unwrap())
        );
    }
    assert_eq!(server.node.kept_snapshots().len(), 2, "the node keeps nothing of it");
    assert_eq!(client.get("/templates/a").await.status, 404);
    assert_eq!(fork(client, &id, json!({})).await.status, 201, "a fork keeps nothing");
    assert_eq!(client.delete(&format!("/templates/{first}")).await.status, 204);
    take(client, &id, json!({ "memory": false, "name": "a" })).await;
}

#[tokio::test]
async fn what_is_asked_during_a_snapshot_waits_its_turn() {
    let server = Server::start().await;
    let client = &server.client;
    let id = server.create(json!({ "timeout": 1, "autoPause": true })).await;
    server.node.faults.change_takes.store(300, Relaxed);
    let pause = format!("/sandboxes/{id}/pause");
    let begun = async {
        until("it is under way", || async { server.node.faults.changes.load(Relaxed) > 0 }).await;
        let again = snapshot(client, &id, json!({}));
        let connect_path = format!("/v2/sandboxes/{id}/connect");
        let connect = client.post(&connect_path, json!({ "timeout": 60 }));
        tokio::join!(again, connect, client.inside(&id, 8080, "/"))
    };
    let (first, (second, connected, inside)) = tokio::join!(snapshot(client, &id, json!({})), begun);
    assert_eq!((first.status, second.status, connected.status, inside.status), (201, 201, 200, 200));
    let (taken, paused) = tokio::join!(snapshot(client, &id, json!({})), async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        client.post(&pause, json!({})).await
    });
    assert_eq!((taken.status, paused.status), (201, 204));
    assert_eq!(client.post(&format!("/v2/sandboxes/{id}/connect"), json!({})).await.status, 201);
    let (forked, killed) = tokio::join!(fork(client, &id, json!({})), async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        client.delete(&format!("/sandboxes/{id}")).await
    });
    assert_eq!((forked.status, killed.status), (201, 204));
    assert!(forked.json[0]["sandbox"].is_object(), "the copy lives on: {forked:?}");
    assert_eq!(ids(client, "").await.len(), 3);
    until("the fork's is gone", || async { server.node.kept_snapshots().len() == 3 }).await;
}

#[tokio::test]
async fn a_snapshot_that_fails_leaves_nothing() {
    let server = Server::start_with(|config| {
        config.control.memory_timeout = Duration::from_millis(100);
        config.control.recheck_every = Duration::from_millis(50);
    })
    .await;
    let client = &server.client;
    let id = server.create(json!({})).await;
    server.node.faults.snapshot_fails.store(true, Relaxed);
    assert_eq!(refused(&snapshot(client, &id, json!({ "name": "a" })).await).0, 500);
    assert_eq!(refused(&fork(client, &id, json!({})).await).0, 500);
    server.node.faults.snapshot_fails.store(false, Relaxed);
    assert_eq!(client.get("/templates/a").await.status, 404);
    server.node.faults.change_takes.store(400, Relaxed);
    for late in [snapshot(client, &id, json!({ "name": "a" })).await, fork(client, &id, json!({})).await] {
        assert_eq!((late.status, late.headers["should-retry"].to_str().unwrap()), (504, "false"), "{late:?}");
    }
    server.node.faults.change_takes.store(0, Relaxed);
    until("the late ones were removed", || async {
        server.node.faults.changes.load(Relaxed) >= 2 && server.node.kept_snapshots().is_empty()
    })
    .await;
    assert!(ids(client, "").await.is_empty());
    server.node.faults.remove_snapshot_fails.store(true, Relaxed);
    let earlier = server.node.removals().len();
    assert_eq!(fork(client, &id, json!({})).await.status, 201);
    until("its removal was tried", || async { server.node.removals().len() > earlier }).await;
    assert_eq!(server.node.kept_snapshots().len(), 1);
    server.node.faults.remove_snapshot_fails.store(false, Relaxed);
    until("it is removed later", || async { server.node.kept_snapshots().is_empty() }).await;
}

#[tokio::test]
async fn a_fork_answers_while_its_snapshot_is_removed_which_nobody_else_does() {
    let server = Server::start().await;
    let client = &server.client;
    let id = server.create(json!({})).await;
    let kept = take(client, &id, json!({})).await;
    server.node.faults.remove_snapshot_waits.store(true, Relaxed);
    assert_eq!(fork(client, &id, json!({ "count": 2 })).await.status, 201);
    assert_eq!(server.node.kept_snapshots().len(), 2);
    until("its removal has begun", || async { server.node.removals().len() == 1 }).await;
    let (other, path) = (client.clone(), format!("/templates/{kept}"));
    let deleted = tokio::spawn(async move { other.delete(&path).await.status });
    until("what no row names is being removed", || async { server.node.removals().len() == 2 }).await;
    server.node.faults.remove_snapshot_waits.store(false, Relaxed);
    assert_eq!(deleted.await.unwrap(), 204);
    until("both are gone", || async { server.node.kept_snapshots().is_empty() }).await;
    let removals = server.node.removals();
    assert!(removals.len() == 2 && removals[0] != removals[1], "each was removed once: {removals:?}");
}

#[tokio::test]
async fn a_server_that_stops_waits_until_the_snapshot_of_a_fork_is_removed() {
    let mut server = Server::start().await;
    let id = server.create(json!({})).await;
    server.node.faults.remove_snapshot_waits.store(true, Relaxed);
    assert_eq!(fork(&server.client, &id, json!({})).await.status, 201);
    until("its removal has begun", || async { server.node.removals().len() == 1 }).await;
    let (node, address) = (Arc::clone(&server.node), server.address);
    let stopped = async {
        server.stop().await;
        node.kept_snapshots().len()
    };
    let opened = async {
        until("the server is stopping", || async { TcpStream::connect(address).await.is_err() }).await;
        node.faults.remove_snapshot_waits.store(false, Relaxed);
    };
    let (left, ()) = tokio::join!(stopped, opened);
    assert_eq!(left, 0);
}

#[tokio::test]
async fn a_server_that_dies_in_between_leaves_no_snapshot() {
    let mut server = Server::start().await;
    let id = server.create(json!({})).await;
    let kept = take(&server.client, &id, json!({ "name": "kept" })).await;
    server.node.faults.change_takes.store(300, Relaxed);
    let (client, other) = (server.client.clone(), server.client.clone());
    let (one, two) = (id.clone(), id.clone());
    tokio::spawn(async move { snapshot(&client, &one, json!({ "name": "half" })).await });
    tokio::spawn(async move { fork(&other, &two, json!({ "count": 3 })).await });
    until("one is under way", || async { server.node.faults.changes.load(Relaxed) >= 2 }).await;
    server.crash().await;
    until("the node has finished", || async { server.node.kept_snapshots().len() >= 2 }).await;
    server.node.faults.change_takes.store(0, Relaxed);
    let server = server.start_again().await;
    until("it answers", || async { server.client.get("/v2/sandboxes").await.status == 200 }).await;
    assert_eq!(server.node.kept_snapshots().len(), 1);
    assert_eq!(ids(&server.client, "").await, [kept.as_str()]);
    assert_eq!(server.client.get("/templates/half").await.status, 404);
    assert_eq!(server.client.post("/v2/sandboxes", json!({ "templateID": kept })).await.status, 201);
    take(&server.client, &id, json!({ "name": "half" })).await;
}

#[tokio::test]
async fn snapshots_that_are_not_on_the_node_are_forgotten_and_their_names_are_free() {
    let mut server = Server::start().await;
    let id = server.create(json!({})).await;
    take(&server.client, &id, json!({ "name": "kept" })).await;
    server.crash().await;
    server.node.lose_snapshots();
    let server = server.start_again().await;
    until("it answers", || async { server.client.get("/v2/sandboxes").await.status == 200 }).await;
    assert_eq!(ids(&server.client, "").await, [""; 0]);
    assert_eq!(server.client.post("/v2/sandboxes", json!({ "templateID": "kept" })).await.status, 404);
    take(&server.client, &id, json!({ "name": "kept" })).await;
}

#[tokio::test]
async fn the_copies_of_a_client_that_hangs_up_are_removed() {
    use tokio::io::AsyncWriteExt as _;
    let server = Server::start().await;
    let id = server.create(json!({})).await;
    server.node.faults.create_takes.store(300, Relaxed);
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    let head = format!(
        "POST /sandboxes/{id}/fork HTTP/1.1\r\nhost: x\r\nx-api-key: {}\r\ncontent-length: 0\r\n\r\n",
        support::server::KEY
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    until("the copy is being created", || async { server.node.creates.load(Relaxed) == 2 }).await;
    drop(stream);
    until("the copy was there", || async { server.node.executions() == 2 }).await;
    until("only the source is left", || async { server.node.count() == 1 }).await;
    until("its snapshot is gone", || async { server.node.kept_snapshots().is_empty() }).await;
}

#[tokio::test]
async fn a_rollback_keeps_the_id_the_tokens_and_the_deadline() {
    let server = Server::start().await;
    let client = &server.client;
    let id = server.create(json!({ "timeout": 100, "metadata": { "a": "b" } })).await;
    let other = server.create(json!({})).await;
    let mine = take(client, &id, json!({ "name": "mine" })).await;
    let foreign = take(client, &other, json!({})).await;
    assert_eq!(refused(&rollback(client, &id, &foreign).await).0, 400);
    let unknown = refused(&rollback(client, &id, "nothing").await);
    assert_eq!(unknown, (404, "snapshot 'nothing' not found".to_owned()));
    assert_eq!(refused(&rollback(client, &id, "base").await).0, 404, "a template is no snapshot");
    assert_eq!(refused(&client.post(&format!("/sandboxes/{id}/rollback"), json!({})).await).0, 400);
    let before = client.get(&format!("/sandboxes/{id}")).await.json;
    let lives = server.node.executions();
    assert_eq!(rollback(client, &id, &mine).await.status, 204);
    assert_eq!(server.node.executions(), lives + 1);
    assert_eq!(client.get(&format!("/sandboxes/{id}")).await.json, before);
    assert_eq!(client.inside(&id, 8080, "/").await.status, 200, "traffic reaches the new life");
    *server.node.faults.undumpable.lock().unwrap() = Some("its template has changed".to_owned());
    assert!(refused(&rollback(client, &id, &mine).await).1.contains("its template has changed"));
    *server.node.faults.undumpable.lock().unwrap() = None;
    server.node.faults.resume_fails.store(true, Relaxed);
    assert_eq!(refused(&rollback(client, &id, &mine).await).0, 500);
    server.node.faults.resume_fails.store(false, Relaxed);
    assert_eq!((server.node.executions(), client.inside(&id, 8080, "/").await.status), (lives + 1, 200));
    assert_eq!(client.post(&format!("/sandboxes/{id}/pause"), json!({})).await.status, 204);
    assert_eq!(refused(&rollback(client, &id, &mine).await).0, 409);
}

#[tokio::test]
async fn a_rollback_during_which_the_server_dies_ends_as_the_node_says() {
    let mut server = Server::start().await;
    let id = server.create(json!({})).await;
    let mine = take(&server.client, &id, json!({})).await;
    server.node.faults.change_takes.store(300, Relaxed);
    let begun = server.node.faults.changes.load(Relaxed);
    let (client, of) = (server.client.clone(), id.clone());
    tokio::spawn(async move { rollback(&client, &of, &mine).await });
    until("it is under way", || async { server.node.faults.changes.load(Relaxed) > begun }).await;
    let lives = server.node.executions();
    server.crash().await;
    until("the node has finished", || async { server.node.executions() > lives }).await;
    server.node.faults.change_takes.store(0, Relaxed);
    let server = server.start_again().await;
    until("the new life is reached", || async { server.client.inside(&id, 8080, "/").await.status == 200 }).await;
}

#[tokio::test]
async fn a_snapshot_is_an_event_and_a_fork_is_not() {
    let server = Server::start().await;
    let client = &server.client;
    let id = server.create(json!({})).await;
    let taken = take(client, &id, json!({ "name": "n" })).await;
    assert_eq!(fork(client, &id, json!({})).await.status, 201);
    let path = format!("/events/sandboxes/{id}?types=sandbox.lifecycle.checkpointed");
    until("the event is there", || async {
        client.get(&path).await.json.as_array().is_some_and(|all| !all.is_empty())
    })
    .await;
    let events = client.get(&path).await.json;
    assert_eq!((events.as_array().unwrap().len(), &events[0]["eventLabel"]), (1, &json!("checkpointed")), "{events}");
    assert_eq!(rollback(client, &id, &taken).await.status, 204);
}

#[tokio::test]
async fn kernel_features_come_with_a_snapshot_and_can_be_taken_back() {
    use isopod_wire::FeatureGrants;
    use std::collections::BTreeMap;
    use std::sync::atomic::AtomicBool;
    let granted = Arc::new(AtomicBool::new(true));
    let grants = Arc::clone(&granted);
    let mut server = Server::start_with(move |config| {
        if grants.load(Relaxed) {
            let teams = BTreeMap::from([("*".to_owned(), vec!["userns".to_owned()])]);
            config.control.features = FeatureGrants::parse(&teams).unwrap();
        }
    })
    .await;
    let id = server.create(json!({ "metadata": { "isopod.allow": "userns" } })).await;
    let taken = take(&server.client, &id, json!({})).await;
    let made = server.client.post("/v2/sandboxes", json!({ "templateID": taken })).await.json;
    let copied = made["sandboxID"].as_str().unwrap().to_owned();
    assert!(server.node.spec_of(&copied).unwrap().features.userns);
    server.stop().await;
    granted.store(false, Relaxed);
    let server = server.start_again().await;
    let made = server.client.post("/v2/sandboxes", json!({ "templateID": taken })).await;
    assert_eq!(refused(&made).0, 403);
}

#[tokio::test]
async fn the_rust_client_does_all_of_it() {
    use isopod_client::sandbox::{ListSnapshots, NewSandbox, NewSnapshot};
    use isopod_client::{ApiError, Client, ClientConfig};
    let server = Server::start_with(|config| config.control.team_limits.concurrent = 4).await;
    let url = format!("http://{}", server.address);
    let config = ClientConfig { api_url: url, api_key: support::server::KEY.to_owned(), ..ClientConfig::default() };
    let client = Client::new(config).unwrap();
    let sandbox = client.create(NewSandbox::new("base")).await.unwrap();
    let named = NewSnapshot { name: Some("n".to_owned()), files_only: true };
    let taken = sandbox.snapshot(&named).await.unwrap();
    assert_eq!((taken.id.as_str(), taken.memory), ("n:default", Some(false)));
    sandbox.rollback(&taken.id).await.unwrap();
    let mine = ListSnapshots { sandbox: Some(sandbox.id().clone()), name: None };
    assert_eq!(client.list_snapshots(&mine).await.unwrap(), std::slice::from_ref(&taken));
    let copy = client.create(NewSandbox::new(&taken.id)).await.unwrap();
    assert_ne!(copy.template(), "base");
    let copies = sandbox.fork(3, Some(Duration::from_secs(60))).await.unwrap();
    assert_eq!(copies.iter().filter(|copy| copy.is_ok()).count(), 2);
    assert!(copies.iter().any(|copy| matches!(copy, Err(ApiError::RateLimited { .. }))), "{copies:?}");
    assert!(client.remove_snapshot("n:default").await.unwrap());
    assert!(!client.remove_snapshot("n:default").await.unwrap());
    assert!(sandbox.rollback("n").await.unwrap_err().is_not_found());
}
