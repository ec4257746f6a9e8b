//! The catalogue of templates over the REST API: builds, tags, names, uploads, and the templates of sandboxes.

use crate::support;

use std::collections::BTreeMap;
use std::io::Read as _;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use http::Method;
use isopod_wire::FeatureGrants;
use isopod_wire::build::{BuildFrom, BuildInstruction, BuildSource};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use support::Server;
use support::client::Client;
use support::server::until;

/// Builds like an SDK: requests, starts, and polls until the end.
async fn build(client: &Client, request: Value, start: Value) -> (Value, Value) {
    let asked = client.post("/v3/templates", request).await;
    assert_eq!(asked.status, 202, "{asked:?}");
    let (template, build) = (asked.json["templateID"].as_str().unwrap(), asked.json["buildID"].as_str().unwrap());
    let started = client.post(&format!("/v2/templates/{template}/builds/{build}"), start).await;
    assert_eq!((started.status, started.text.as_str()), (202, ""), "{started:?}");
    (asked.json.clone(), finished(client, template, build).await)
}

async fn finished(client: &Client, template: &str, build: &str) -> Value {
    let path = format!("/templates/{template}/builds/{build}/status?logsOffset=0&limit=100");
    for _ in 0..500 {
        let status = client.get(&path).await.json;
        if status["status"] == "ready" || status["status"] == "error" {
            return status;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    panic!("the build never ended");
}

fn steps(commands: &[&str]) -> Value {
    let steps: Vec<Value> =
        commands.iter().map(|text| json!({ "type": "RUN", "args": [text], "force": false })).collect();
    json!({ "fromImage": "debian:12", "steps": steps, "force": false })
}

async fn made_of(server: &Server, client: &Client, template: &str) -> String {
    let made = client.post("/v2/sandboxes", json!({ "templateID": template })).await;
    assert_eq!(made.status, 201, "{made:?}");
    server.node.spec_of(made.json["sandboxID"].as_str().unwrap()).unwrap().template
}

/// Names and ids, tags as versions, and a rebuild in place.
#[tokio::test]
async fn a_template_is_built_used_rebuilt_and_rolled_back() {
    let server = Server::start().await;
    let client = &server.client;
    let request = json!({ "name": "Web", "cpuCount": 4, "memoryMB": 4096 });
    let (asked, first) = build(client, request.clone(), steps(&["echo one"])).await;
    let id = asked["templateID"].as_str().unwrap();
    assert_eq!(
        (&asked["names"], &asked["aliases"], &asked["tags"]),
        (&json!(["web"]), &json!(["web"]), &json!(["default"]))
    );
    assert_eq!(first["status"], "ready", "{first}");
    assert_eq!(
        (&first["logEntries"][0]["message"], &first["logEntries"][0]["step"]),
        (&json!("echo one"), &json!("1"))
    );
    assert!(first["logEntries"][0]["timestamp"].is_string() && first["logs"].is_array());

    let made = client.post("/v2/sandboxes", json!({ "templateID": "web" })).await;
    assert_eq!((&made.json["templateID"], &made.json["alias"]), (&json!(id), &json!("web")));
    let sandbox = made.json["sandboxID"].as_str().unwrap();
    let spec = server.node.spec_of(sandbox).unwrap();
    assert_eq!((spec.limits.cpu_millis, spec.limits.memory.as_mib()), (4000, 4096));
    let detail = client.get(&format!("/sandboxes/{sandbox}")).await.json;
    assert_eq!((&detail["cpuCount"], &detail["memoryMB"]), (&json!(4), &json!(4096)));
    assert_eq!(spec.env["E2B_TEMPLATE_ID"], id, "the id that clients know, not the node's");
    let old = spec.template;
    for name in [id, "web", "web:default", &format!("{id}:default"), "default/web"] {
        assert_eq!(made_of(&server, client, name).await, old, "{name}");
    }
    assert_eq!(client.get("/v2/sandboxes?template=web").await.json.as_array().unwrap().len(), 6);

    let (again, second) = build(client, request, steps(&["echo two"])).await;
    assert_eq!((&again["templateID"], &second["status"]), (&json!(id), &json!("ready")));
    let new = made_of(&server, client, "web").await;
    assert_ne!(new, old);
    assert_eq!(server.node.spec_of(sandbox).unwrap().template, old, "a running sandbox is left alone");

    let builds = client.get(&format!("/templates/{id}")).await.json;
    let builds = builds["builds"].as_array().unwrap();
    assert_eq!((builds.len(), &builds[0]["tags"], &builds[1]["tags"]), (2, &json!(["default"]), &json!([])));
    let target = format!("web:{}", builds[1]["buildID"].as_str().unwrap());
    let tagged = client.post("/templates/tags", json!({ "target": target, "tags": ["default", "v1"] })).await;
    assert_eq!((tagged.status, &tagged.json["buildID"]), (201, &builds[1]["buildID"]));
    assert_eq!(made_of(&server, client, "web").await, old, "a tag goes back to an earlier build");
    assert_eq!(made_of(&server, client, "web:v1").await, old);
    let tags = client.get("/templates/web/tags").await.json;
    assert_eq!(tags.as_array().unwrap().len(), 2);
    assert_eq!(client.get("/templates/web/tags/count").await.json, json!({ "total": 2 }));
    for (tag, exists) in [("v1", true), ("v9", false)] {
        let answer = client.get(&format!("/templates/web/tags/exists?tag={tag}")).await;
        assert_eq!(answer.json, json!({ "exists": exists, "normalizedTag": tag }));
    }
    assert_eq!(client.get("/templates/web/tags/exists").await.status, 400);
    assert_eq!(client.get("/templates/none/tags/count").await.status, 404);
    assert_eq!(client.get("/templates/web/tags/groups").await.status, 501);
    assert!(tags[0]["createdAt"].is_string() && tags[0]["buildID"] == builds[1]["buildID"]);
    let removed = client.call(Method::DELETE, "/templates/tags", &[], Some(json!({ "name": "web", "tags": ["v1"] })));
    assert_eq!(removed.await.status, 204);
    let gone = client.post("/v2/sandboxes", json!({ "templateID": "web:v1" })).await;
    assert_eq!(gone.status, 404);
    assert_eq!(gone.json["message"], "template 'web' has no tag 'v1'; it has default");

    let listed = client.get("/templates").await.json;
    let listed = listed.as_array().unwrap().iter().find(|one| one["templateID"] == id).unwrap();
    assert_eq!((&listed["spawnCount"], &listed["buildCount"], &listed["cpuCount"]), (&json!(9), &json!(2), &json!(4)));
    assert_eq!((&listed["buildStatus"], &listed["public"]), (&json!("ready"), &json!(false)));
}

#[tokio::test]
async fn a_build_that_fails_says_why_and_changes_nothing() {
    let server = Server::start().await;
    let client = &server.client;
    build(client, json!({ "name": "web" }), steps(&["echo"])).await;
    let before = made_of(&server, client, "web").await;
    let (_, failed) = build(client, json!({ "name": "web" }), steps(&["echo", "fail", "echo"])).await;
    assert_eq!(failed["status"], "error");
    assert_eq!(failed["reason"], json!({ "message": "the command ended with 1", "step": "2" }));
    let levels: Vec<&str> =
        failed["logEntries"].as_array().unwrap().iter().map(|line| line["level"].as_str().unwrap()).collect();
    assert_eq!(levels, ["info", "info", "error"]);
    assert_eq!(made_of(&server, client, "web").await, before);
    let (_, never) = build(client, json!({ "name": "never" }), steps(&["fail"])).await;
    assert_eq!(never["status"], "error");
    let refused = client.post("/v2/sandboxes", json!({ "templateID": "never" })).await;
    assert_eq!(
        (refused.status, refused.json["message"].as_str().unwrap()),
        (404, "template 'never' has no tag 'default'; no build of it is ready")
    );
}

/// An internal error is reported without the server's own files.
#[tokio::test]
async fn a_build_that_breaks_the_server_tells_nothing_about_the_host() {
    let server = Server::start().await;
    let (asked, failed) = build(&server.client, json!({ "name": "web" }), steps(&["break"])).await;
    let told = "could not keep the layer; see the server's log for details";
    assert_eq!((&failed["status"], &failed["reason"]["message"]), (&json!("error"), &json!(told)));
    let path =
        format!("/templates/{}/builds/{}", asked["templateID"].as_str().unwrap(), asked["buildID"].as_str().unwrap());
    for path in [format!("{path}/logs"), format!("{path}/status?logsOffset=0")] {
        assert!(!server.client.get(&path).await.text.contains("/var/lib"), "{path}");
    }
}

/// Starts a build with this single step.
async fn begin_build(client: &Client, name: &str, command: &str) -> (String, String, u16) {
    let asked = client.post("/v3/templates", json!({ "name": name })).await.json;
    let (id, build) = (asked["templateID"].as_str().unwrap().to_owned(), asked["buildID"].as_str().unwrap().to_owned());
    let begun = client.post(&format!("/v2/templates/{id}/builds/{build}"), steps(&[command])).await;
    if begun.status == 429 {
        assert_eq!(begun.json["error_code"], "too_many_builds", "{begun:?}");
        assert!(begun.headers.contains_key("retry-after"));
    }
    (id, build, begun.status)
}

#[tokio::test]
async fn one_teams_builds_do_not_hold_up_anothers_and_only_so_many_wait() {
    let server = Server::start().await;
    let mut begun = Vec::new();
    for n in 0..20 {
        let (_, build, status) = begin_build(&server.client, &format!("t{n}"), "hang").await;
        assert_eq!(status, 202, "{n}");
        begun.push(build);
    }
    until("what can be is under way", || async { server.node.builder.specs.lock().unwrap().len() >= 2 }).await;
    let other = server.other_team().await;
    let (id, build, _) = begin_build(&other, "theirs", "echo").await;
    assert_eq!(finished(&other, &id, &build).await["status"], "ready", "while the others hang");
    assert_eq!(server.node.builder.specs.lock().unwrap().len(), 3, "two of the first team, one of the other");

    let (id, refused, status) = begin_build(&server.client, "one-more", "echo").await;
    assert_eq!(status, 429, "the team has as many as it may");
    let header = [("x-api-key", server.client.key.as_str())];
    let unread = Bytes::from_static(b"never read");
    let context = server.client.raw(Method::POST, "/isopod/templates/builds?name=context", &header, unread).await;
    assert_eq!(context.status, 429);
    for build in &begun {
        let cancelled = server.client.post(&format!("/isopod/templates/builds/{build}/cancel"), json!({})).await;
        assert_eq!(cancelled.status, 202);
    }
    until("they have ended", || async {
        let path = format!("/v2/templates/{id}/builds/{refused}");
        server.client.post(&path, steps(&["echo"])).await.status == 202
    })
    .await;
    assert_eq!(finished(&server.client, &id, &refused).await["status"], "ready", "a refused one can be started later");
}

/// Each of two uploads would fit, but not both together.
#[tokio::test]
async fn uploads_at_the_same_time_share_one_allowance() {
    let server = Server::start_with(|config| {
        config.control.builds.upload = 4000;
        config.control.builds.team_uploads = 1500;
    })
    .await;
    let client = &server.client;
    let id = client.post("/v3/templates", json!({ "name": "web" })).await.json["templateID"].clone();
    let mut uploads = Vec::new();
    for digit in ["a", "b"] {
        let link = client.get(&format!("/templates/{}/files/{}", id.as_str().unwrap(), digit.repeat(64))).await;
        let path = link.json["url"].as_str().unwrap().strip_prefix("http://localhost").unwrap().to_owned();
        let mut stream = tokio::net::TcpStream::connect(server.address).await.unwrap();
        let head =
            format!("PUT {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 900\r\nConnection: close\r\n\r\nx");
        stream.write_all(head.as_bytes()).await.unwrap();
        uploads.push(stream);
    }
    let parts = server.database().parent().unwrap().join("uploads/parts");
    let under_way = || std::fs::read_dir(&parts).map_or(0, Iterator::count);
    until("both are under way", || async { under_way() == 2 }).await;
    let mut statuses = Vec::new();
    for mut stream in uploads {
        // The response may arrive before everything was sent.
        let _ = stream.write_all(&[b'x'; 899]).await;
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer).await;
        statuses.push(String::from_utf8_lossy(&answer).split(' ').nth(1).unwrap().to_owned());
    }
    statuses.sort_unstable();
    assert_eq!(statuses, ["200", "413"]);
    let header = [("x-api-key", client.key.as_str())];
    let large = Bytes::from(vec![b'x'; 2000]);
    let context = client.raw(Method::POST, "/isopod/templates/builds?name=web", &header, large).await;
    assert_eq!(context.status, 413, "a context takes from the same allowance: {context:?}");
    assert_eq!(under_way(), 0, "and leaves nothing");
    // A small upload that unpacks to a lot does not help either.
    let unpacked = client.raw(Method::POST, "/isopod/templates/builds?name=web", &header, zeros(100_000).into()).await;
    assert_eq!(unpacked.status, 413, "{unpacked:?}");
    let contexts = server.database().parent().unwrap().join("uploads/contexts");
    assert_eq!(std::fs::read_dir(contexts).map_or(0, Iterator::count), 0);
    assert_eq!(server.node.builder.specs.lock().unwrap().len(), 0);
    // The space of a refused upload is released.
    let small = client.raw(Method::POST, "/isopod/templates/builds?name=web", &header, zeros(10).into()).await;
    assert_ne!(small.status, 413, "{small:?}");
}

/// A compressed archive with one file of this many zeros.
fn zeros(size: usize) -> Vec<u8> {
    let mut archive = tar::Builder::new(flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best()));
    let mut header = tar::Header::new_gnu();
    header.set_size(size as u64);
    header.set_mode(0o644);
    archive.append_data(&mut header, "zeros", std::io::repeat(0).take(size as u64)).unwrap();
    archive.into_inner().unwrap().finish().unwrap()
}

/// Of built-in templates and of a team's own, and only as far as the team may have them.
#[tokio::test]
async fn sandboxes_of_templates_that_the_operator_lists_have_kernel_features_without_asking() {
    let start = |team: &'static str| {
        Server::start_with(move |config| {
            let userns = |name: &str| (name.to_owned(), vec!["userns".to_owned()]);
            let templates = BTreeMap::from(["base", "browser"].map(userns));
            let granted = FeatureGrants::parse(&BTreeMap::from([userns(team)])).unwrap();
            config.control.features = granted.with_templates(&templates).unwrap();
        })
    };
    let server = start("*").await;
    let (client, other) = (&server.client, server.other_team().await);
    let (asked, _) = build(client, json!({ "name": "browser" }), steps(&["echo"])).await;
    build(client, json!({ "name": "plain" }), steps(&["echo plain"])).await;
    let published = client.call(Method::PATCH, "/v2/templates/browser", &[], Some(json!({ "public": true }))).await;
    assert_eq!(published.status, 200, "{published:?}");
    let has_userns = async |server: &Server, client: &Client, template: &str, metadata: Value| {
        let made = client.post("/v2/sandboxes", json!({ "templateID": template, "metadata": metadata })).await;
        assert_eq!(made.status, 201, "{made:?}");
        server.node.spec_of(made.json["sandboxID"].as_str().unwrap()).unwrap().features.userns
    };
    let id = asked["templateID"].as_str().unwrap();
    for template in ["base", "browser", id] {
        assert!(has_userns(&server, client, template, json!({})).await, "{template}");
        assert!(!has_userns(&server, client, template, json!({ "isopod.allow": "" })).await, "{template}");
    }
    assert!(!has_userns(&server, client, "plain", json!({})).await);
    assert!(has_userns(&server, &other, "base", json!({})).await);
    assert!(!has_userns(&server, &other, "browser", json!({})).await, "another team has chosen that name");

    let session = json!({ "templateID": "base", "metadata": { "isopod.session": "s" } });
    let first = server.create(session.clone()).await;
    assert_eq!(server.create(session).await, first);
    let detail = client.get(&format!("/sandboxes/{first}")).await.json;
    assert_eq!(detail["metadata"]["isopod.allow"], "userns");

    let strict = start("somebody-else").await;
    assert!(!has_userns(&strict, &strict.client, "base", json!({})).await);
}

/// A missing template is a clear 404. Another team's is refused or not found.
#[tokio::test]
async fn templates_of_other_teams_are_theirs_until_they_are_public() {
    let server = Server::start().await;
    let (client, other) = (&server.client, server.other_team().await);
    let (asked, _) = build(client, json!({ "name": "web" }), steps(&["echo"])).await;
    let id = asked["templateID"].as_str().unwrap();
    let bid = asked["buildID"].as_str().unwrap();
    let create = |name: &str| other.post("/v2/sandboxes", json!({ "templateID": name }));
    let missing = create("web").await;
    assert_eq!((missing.status, missing.json["message"].as_str().unwrap()), (404, "template 'web' not found"));
    assert_eq!(create(id).await.status, 403);
    assert_eq!(other.get("/templates/aliases/web").await.status, 404);
    assert_eq!(other.get(&format!("/templates/aliases/{id}")).await.status, 403);
    assert_eq!(client.get("/templates/aliases/web").await.json, json!({ "templateID": id, "public": false }));
    assert_eq!(client.get("/templates/aliases/base").await.json, json!({ "templateID": "base", "public": true }));

    let published = client.call(Method::PATCH, "/v2/templates/web", &[], Some(json!({ "public": true }))).await;
    assert_eq!((published.status, &published.json), (200, &json!({ "names": ["web"] })));
    assert_eq!(create("web").await.status, 201);
    assert_eq!(create("default/web").await.status, 201);
    for (method, path, body) in [
        (Method::DELETE, format!("/templates/{id}"), None),
        (Method::PATCH, format!("/v2/templates/{id}"), Some(json!({ "public": false }))),
        (Method::POST, "/templates/tags".to_owned(), Some(json!({ "target": "web:default", "tags": ["mine"] }))),
        (Method::DELETE, "/templates/tags".to_owned(), Some(json!({ "name": "web", "tags": ["default"] }))),
        (Method::GET, format!("/templates/{id}/files/{}", "a".repeat(64)), None),
        (Method::GET, format!("/templates/{id}/builds/{bid}/status"), None),
        (Method::POST, format!("/templates/{id}/builds/{bid}"), None),
        (Method::POST, "/v3/templates".to_owned(), Some(json!({ "name": "default/web" }))),
        (Method::POST, "/v3/templates".to_owned(), Some(json!({ "name": "x", "teamID": "someone" }))),
    ] {
        let answer = other.call(method.clone(), &path, &[], body).await;
        assert_eq!(answer.status, 403, "{method} {path} {answer:?}");
    }
    // A name of the other team's own has priority over the public one, and nobody can replace a built-in one.
    build(&other, json!({ "name": "web" }), steps(&["echo mine"])).await;
    assert_ne!(made_of(&server, &other, "web").await, made_of(&server, client, "web").await);
    build(client, json!({ "name": "base" }), steps(&["echo evil"])).await;
    client.call(Method::PATCH, "/v2/templates/base", &[], Some(json!({ "public": true }))).await;
    assert_eq!(made_of(&server, &other, "base").await, "base");
    assert_ne!(made_of(&server, client, "base").await, "base");
    assert_eq!(other.get("/templates").await.json.as_array().unwrap().len(), 3, "their own and the server's two");
}

/// The node creates a sandbox from any template, but clients cannot name the node's own ids of built ones.
#[tokio::test]
async fn the_nodes_id_of_a_template_opens_it_to_nobody() {
    let server = Server::start().await;
    build(&server.client, json!({ "name": "web" }), steps(&["put a secret"])).await;
    let node_id = made_of(&server, &server.client, "web").await;
    assert!(node_id.starts_with("tpl-") && server.node.builder.has(&node_id));
    let (creates, builds) =
        (server.node.creates.load(Ordering::Relaxed), server.node.builder.specs.lock().unwrap().len());
    let other = server.other_team().await;
    for client in [&other, &server.client] {
        for name in [node_id.clone(), format!("{node_id}:default"), node_id.to_uppercase()] {
            let asked = client.post("/v2/sandboxes", json!({ "templateID": name })).await;
            assert_eq!(asked.status, 404, "{asked:?}");
            assert_eq!(client.post("/sandboxes", json!({ "templateID": name })).await.status, 404);
            let service = json!({ "agent_id": "a", "template": name });
            let asked = client.post("/api/v1/sandboxes", service).await;
            assert_eq!(asked.status, 404, "{asked:?}");
            let toolkit = format!("/api/v1/executions/of-{}/toolkit", if client.key == other.key { "b" } else { "a" });
            let configured = client.put(&toolkit, json!({ "template": name })).await;
            assert_eq!(configured.status, 200, "{configured:?}");
            let started = client.post(&toolkit, json!({})).await;
            assert_eq!(started.status, 404, "{started:?}");
            let asked = client.post("/v3/templates", json!({ "name": "taken" })).await.json;
            let (id, build) = (asked["templateID"].as_str().unwrap(), asked["buildID"].as_str().unwrap());
            let start = json!({ "fromTemplate": name, "steps": [] });
            let started = client.post(&format!("/v2/templates/{id}/builds/{build}"), start).await;
            assert_eq!(started.status, 400, "{started:?}");
            assert!(started.text.contains("not found"), "{started:?}");
        }
    }
    assert_eq!(server.node.creates.load(Ordering::Relaxed), creates, "the node is not asked");
    assert_eq!(server.node.builder.specs.lock().unwrap().len(), builds);
}

#[tokio::test]
async fn nothing_starts_that_cannot_be_understood() {
    let server = Server::start().await;
    let client = &server.client;
    for bad in [
        json!({}),
        json!({ "name": "no spaces" }),
        json!({ "name": "web:v/1" }),
        json!({ "name": "web", "tags": ["01234567-89ab-4cde-8f01-23456789abcd"] }),
        json!({ "name": "web", "cpuCount": 0 }),
        json!({ "name": "web", "memoryMB": 1 }),
        json!({ "surprise": 1 }),
    ] {
        assert_eq!(client.post("/v3/templates", bad.clone()).await.status, 400, "{bad}");
    }
    let asked = client.post("/v3/templates", json!({ "name": "web" })).await.json;
    let path = format!(
        "/v2/templates/{}/builds/{}",
        asked["templateID"].as_str().unwrap(),
        asked["buildID"].as_str().unwrap()
    );
    let step = |step: Value| json!({ "fromImage": "debian", "steps": [step] });
    for (bad, says) in [
        (json!({}), "fromImage or fromTemplate"),
        (json!({ "fromImage": "a", "fromTemplate": "b" }), "fromImage or fromTemplate"),
        (json!({ "fromTemplate": "nope:v1" }), "template 'nope:v1' not found"),
        (step(json!({ "type": "JUMP" })), "step 1"),
        (step(json!({ "type": "RUN", "args": [] })), "step 1: RUN takes a command"),
        (step(json!({ "type": "COPY", "args": ["a", "b", "", ""] })), "not uploaded"),
        (step(json!({ "type": "COPY", "args": ["a", "b"], "filesHash": "a".repeat(64) })), "not uploaded"),
        (step(json!({ "type": "COPY", "args": ["a", "b"], "filesHash": "../../etc/passwd" })), "not uploaded"),
        (json!({ "surprise": 1 }), "fromImage or fromTemplate"),
    ] {
        let answer = client.post(&path, bad.clone()).await;
        assert_eq!(answer.status, 400, "{bad} {answer:?}");
        assert!(answer.json["message"].as_str().unwrap().contains(says), "{bad} {answer:?}");
    }
    assert_eq!(server.node.builder.specs.lock().unwrap().len(), 0);
    // After all that, the build can still be started, once.
    assert_eq!(client.post(&path, steps(&["echo"])).await.status, 202);
    assert_eq!(client.post(&path, steps(&["echo"])).await.status, 409);
    assert_eq!(client.post("/v2/templates/nope/builds/x", steps(&[])).await.status, 404);
    assert_eq!(client.post(&path.replace(asked["buildID"].as_str().unwrap(), "x"), steps(&[])).await.status, 404);
}

#[tokio::test]
async fn files_are_uploaded_once_and_given_to_the_builder() {
    let server = Server::start_with(|config| {
        config.control.builds.upload = 1000;
        config.control.builds.team_uploads = 1500;
    })
    .await;
    let client = &server.client;
    let asked = client.post("/v3/templates", json!({ "name": "web" })).await.json;
    let id = asked["templateID"].as_str().unwrap();
    let hash = "0123456789abcdef".repeat(4);
    let files = format!("/templates/{id}/files/{hash}");
    let link = client.get(&files).await;
    assert_eq!((link.status, &link.json["present"]), (201, &json!(false)));
    let url = link.json["url"].as_str().unwrap();
    let path = url.strip_prefix("http://localhost").unwrap().to_owned();
    let put = |path: String, size: usize| {
        let client = client.clone();
        async move { client.raw(Method::PUT, &path, &[], Bytes::from(vec![b'x'; size])).await.status }
    };
    assert_eq!(put(path.clone(), 900).await, 200);
    assert_eq!(put(path.clone(), 900).await, 403, "a link works once");
    assert_eq!(put("/isopod/uploads/guess".to_owned(), 1).await, 403);
    assert_eq!(client.get(&files).await.json["present"], true);
    let other = server.other_team().await;
    let theirs = other.post("/v3/templates", json!({ "name": "web" })).await.json;
    let theirs = format!("/templates/{}/files/{hash}", theirs["templateID"].as_str().unwrap());
    assert_eq!(other.get(&theirs).await.json["present"], false, "each team has its own");

    let next = || async {
        let link = client.get(&format!("/templates/{id}/files/{}", "f".repeat(64))).await;
        link.json["url"].as_str().unwrap().strip_prefix("http://localhost").unwrap().to_owned()
    };
    assert_eq!(put(next().await, 1001).await, 413);
    assert_eq!(put(next().await, 700).await, 413, "the team's share is used up");
    assert_eq!(client.get(&format!("/templates/{id}/files/nohash")).await.status, 400);

    let start = json!({
        "fromTemplate": "base",
        "steps": [{ "type": "COPY", "args": ["a.txt", "/app/", "", ""], "filesHash": hash }],
        "startCmd": "serve", "readyCmd": "curl localhost",
    });
    let path = format!("/v2/templates/{id}/builds/{}", asked["buildID"].as_str().unwrap());
    assert_eq!(client.post(&path, start).await.status, 202);
    assert_eq!(finished(client, id, asked["buildID"].as_str().unwrap()).await["status"], "ready");
    let spec = server.node.builder.last();
    assert_eq!((spec.start_cmd.as_deref(), spec.ready_cmd.as_deref()), (Some("serve"), Some("curl localhost")));
    let BuildSource::Steps { from, steps } = spec.source else { panic!("not steps") };
    assert_eq!(from, BuildFrom::Template("base".to_owned()));
    let BuildInstruction::Copy { archive, .. } = &steps[0].instruction else { panic!("not a copy") };
    assert_eq!(std::fs::read(archive).unwrap().len(), 900);
}

#[tokio::test]
async fn logs_are_read_in_pages_as_the_sdks_do() {
    let server = Server::start().await;
    let client = &server.client;
    let commands: Vec<String> = (0..250).map(|number| format!("echo {number}")).collect();
    let commands: Vec<&str> = commands.iter().map(String::as_str).collect();
    let (asked, _) = build(client, json!({ "name": "web" }), steps(&commands)).await;
    let path =
        format!("/templates/{}/builds/{}", asked["templateID"].as_str().unwrap(), asked["buildID"].as_str().unwrap());
    let mut seen = Vec::new();
    loop {
        let page = client.get(&format!("{path}/status?logsOffset={}", seen.len())).await.json;
        let lines = page["logEntries"].as_array().unwrap().clone();
        assert!(lines.len() <= 100);
        if lines.is_empty() {
            break;
        }
        seen.extend(lines.into_iter().map(|line| line["message"].as_str().unwrap().to_owned()));
    }
    assert_eq!(seen, commands);
    assert_eq!(client.get(&format!("{path}/status?level=warn")).await.json["logEntries"], json!([]));
    let last = client.get(&format!("{path}/logs?limit=1&direction=backward")).await.json;
    assert_eq!(last["logs"][0]["message"], "echo 249");
    for bad in ["status?limit=101", "status?logsOffset=-1", "status?level=loud", "logs?direction=up"] {
        assert_eq!(client.get(&format!("{path}/{bad}")).await.status, 400, "{bad}");
    }
}

#[tokio::test]
async fn a_build_is_cancelled_and_one_that_waits_has_its_turn() {
    let server = Server::start_with(|config| config.control.builds.at_once = 1).await;
    let client = &server.client;
    let begin = |name: &'static str, command: &'static str| async move {
        let asked = client.post("/v3/templates", json!({ "name": name })).await.json;
        let (id, build) =
            (asked["templateID"].as_str().unwrap().to_owned(), asked["buildID"].as_str().unwrap().to_owned());
        assert_eq!(client.post(&format!("/v2/templates/{id}/builds/{build}"), steps(&[command])).await.status, 202);
        (id, build)
    };
    let (first, hanging) = begin("first", "hang").await;
    let (second, waiting) = begin("second", "echo").await;
    let (third, dropped) = begin("third", "echo").await;
    let status = |id: &str, build: &str| {
        let path = format!("/templates/{id}/builds/{build}/status");
        async move { client.get(&path).await }
    };
    until("the first is being built", || async { status(&first, &hanging).await.json["status"] == "building" }).await;
    // It was accepted. Clients do not see that it waits in the queue.
    assert_eq!(status(&second, &waiting).await.json["status"], "building");
    assert_eq!(server.node.builder.specs.lock().unwrap().len(), 1);
    let cancel = |build: &str| {
        let path = format!("/isopod/templates/builds/{build}/cancel");
        async move { client.post(&path, json!({})).await }
    };
    assert_eq!(
        server.other_team().await.post(&format!("/isopod/templates/builds/{hanging}/cancel"), json!({})).await.status,
        404
    );
    assert_eq!(cancel(&dropped).await.status, 202);
    assert_eq!(finished(client, &third, &dropped).await["reason"]["message"], "the build was cancelled");
    assert_eq!(cancel(&hanging).await.status, 202);
    assert_eq!(finished(client, &first, &hanging).await["reason"]["message"], "the build was cancelled");
    assert_eq!(finished(client, &second, &waiting).await["status"], "ready");
    assert_eq!(cancel(&waiting).await.status, 409);
    assert_eq!(server.node.builder.count(), 1);
}

#[tokio::test]
async fn a_server_that_dies_in_a_build_leaves_an_error_and_nothing_half() {
    let mut server = Server::start().await;
    build(&server.client, json!({ "name": "web" }), steps(&["echo"])).await;
    let asked = server.client.post("/v3/templates", json!({ "name": "web" })).await.json;
    let (id, bid) = (asked["templateID"].as_str().unwrap().to_owned(), asked["buildID"].as_str().unwrap().to_owned());
    let path = format!("/v2/templates/{id}/builds/{bid}");
    assert_eq!(server.client.post(&path, steps(&["hang"])).await.status, 202);
    until("the build is under way", || async { server.node.builder.specs.lock().unwrap().len() == 2 }).await;
    server.crash().await;
    let server = server.start_again().await;
    let status = server.client.get(&format!("/templates/{id}/builds/{bid}/status")).await.json;
    assert_eq!(status["status"], "error");
    assert!(status["reason"]["message"].as_str().unwrap().contains("server stopped during the build"), "{status}");
    assert_eq!(server.client.post("/v2/sandboxes", json!({ "templateID": "web" })).await.status, 201);
}

#[tokio::test]
async fn a_removed_template_is_gone_and_its_sandboxes_go_on() {
    let server = Server::start().await;
    let client = &server.client;
    build(client, json!({ "name": "web" }), steps(&["echo one"])).await;
    build(client, json!({ "name": "web" }), steps(&["echo two"])).await;
    // Built from the same steps, so the node has one template for both.
    build(client, json!({ "name": "twin" }), steps(&["echo one"])).await;
    build(client, json!({ "name": "web" }), steps(&["echo three"])).await;
    let used = made_of(&server, client, "web").await;
    assert_eq!(server.node.builder.count(), 3);
    assert_eq!(client.delete("/templates/web").await.status, 204);
    assert_eq!(client.delete("/templates/web").await.status, 404);
    assert_eq!(client.delete("/templates/base").await.status, 404, "what comes with the server stays");
    assert_eq!(client.post("/v2/sandboxes", json!({ "templateID": "web" })).await.status, 404);
    assert_eq!(client.get("/templates/aliases/web").await.status, 404);
    assert!(server.node.builder.has(&used), "a sandbox stands on it");
    assert_eq!(server.node.builder.count(), 2, "what nobody needs is gone, the twin's stays");
    assert_eq!(client.post("/v2/sandboxes", json!({ "templateID": "twin" })).await.status, 201);
    for sandbox in client.get("/v2/sandboxes").await.json.as_array().unwrap() {
        client.delete(&format!("/sandboxes/{}", sandbox["sandboxID"].as_str().unwrap())).await;
    }
    assert_eq!(client.delete("/templates/twin").await.status, 204);
    assert_eq!(server.node.builder.count(), 0, "what was in use goes with the next that is removed");
}

/// What `isopod template build` sends.
#[tokio::test]
async fn a_dockerfile_is_built_with_its_context() {
    let server = Server::start().await;
    let client = &server.client;
    let mut archive = tar::Builder::new(Vec::new());
    for (name, content) in [("e2b.Dockerfile", "FROM debian\nCOPY a.txt /\nRUN echo\n"), ("a.txt", "hello")] {
        let mut header = tar::Header::new_gnu();
        header.set_size(content.len() as u64);
        header.set_mode(0o644);
        archive.append_data(&mut header, name, content.as_bytes()).unwrap();
    }
    let archive = Bytes::from(archive.into_inner().unwrap());
    let key = [("x-api-key", client.key.as_str())];
    let send = |query: &str, body: Bytes| {
        let path = format!("/isopod/templates/builds?{query}");
        async move { client.raw(Method::POST, &path, &key, body).await }
    };
    assert_eq!(send("", archive.clone()).await.status, 400);
    assert_eq!(send("name=web&dockerfile=../x", archive.clone()).await.status, 400);
    assert_eq!(send("name=web&dockerfile=none", archive.clone()).await.status, 400);
    assert_eq!(send("name=web", "no archive".into()).await.status, 400);
    assert_eq!(send("name=web&surprise=1", archive.clone()).await.status, 400);
    assert_eq!(client.raw(Method::POST, "/isopod/templates/builds?name=web", &[], archive.clone()).await.status, 401);
    let asked = send("name=web:v1&cpu_count=4&memory_mb=4096&start_cmd=serve&arg=A%3D1&target=last", archive).await;
    assert_eq!(asked.status, 202, "{asked:?}");
    let (id, build) = (asked.json["templateID"].as_str().unwrap(), asked.json["buildID"].as_str().unwrap());
    assert_eq!(finished(client, id, build).await["status"], "ready");
    let spec = server.node.builder.last();
    let BuildSource::Dockerfile(file) = spec.source else { panic!("not a Dockerfile") };
    assert_eq!(
        (file.name.as_str(), file.args["A"].as_str(), file.target.as_deref()),
        ("e2b.Dockerfile", "1", Some("last"))
    );
    assert_eq!(spec.start_cmd.as_deref(), Some("serve"));
    let seen = server.node.builder.contexts.lock().unwrap().pop().unwrap();
    assert_eq!(seen.into_iter().collect::<Vec<_>>(), ["a.txt", "e2b.Dockerfile"]);
    until("the context is gone", || async { !file.context.as_ref().unwrap().exists() }).await;
    assert_eq!(client.post("/v2/sandboxes", json!({ "templateID": "web:v1" })).await.status, 201);
}

/// What `isopod template export` requests.
#[tokio::test]
async fn a_template_is_exported_as_an_image_by_its_own_team() {
    let server = Server::start().await;
    let client = &server.client;
    let (asked, _) = build(client, json!({ "name": "web", "tags": ["default", "v1"] }), steps(&["echo"])).await;
    let id = asked["templateID"].as_str().unwrap();
    let image = |name: &str| format!("/isopod/templates/{name}/image");
    for (path, text) in [
        (image("web"), "web:latest squash=false"),
        (image(id), "web:latest squash=false"),
        (image("web:v1") + "?squash=true", "web:v1 squash=true"),
        (image("web") + "?name=registry.example%2Fweb%3A2", "registry.example/web:2 squash=false"),
    ] {
        let exported = client.get(&path).await;
        assert_eq!((exported.status, exported.text.as_str()), (200, text), "{path}");
    }
    for (path, status) in [
        (image("web:v2"), 404),
        (image("none"), 404),
        (image("web") + "?name=a%20b", 400),
        (image("web") + "?squash=yes", 400),
        (image("web") + "?sqash=true", 400),
    ] {
        assert_eq!(client.get(&path).await.status, status, "{path}");
    }
    // Layers contain what later layers removed, so being public is not enough.
    let other = server.other_team().await;
    assert_eq!(other.get(&image(id)).await.status, 403);
    assert_eq!(client.call(Method::PATCH, "/templates/web", &[], Some(json!({ "public": true }))).await.status, 200);
    assert_eq!(other.post("/v2/sandboxes", json!({ "templateID": id })).await.status, 201);
    assert_eq!(other.get(&image(id)).await.status, 403);

    let built_in = client.get(&image("base")).await;
    assert_eq!((built_in.status, &built_in.json["error_code"]), (409, &json!("template_on_host")));
    server.node.faults.templates_are_on_host.store(true, Ordering::Relaxed);
    let refused = client.get(&image("web")).await;
    assert_eq!(refused.status, 409);
    assert!(refused.json["message"].as_str().unwrap().contains("FROM debian:12"), "{refused:?}");
}

#[tokio::test]
async fn older_clients_build_from_a_dockerfile_alone() {
    let server = Server::start().await;
    let client = &server.client;
    // People put versions into names, with dots.
    let name = "roma-dspy-prod-v1.0.0";
    let body = json!({ "alias": name, "dockerfile": "FROM debian\nRUN echo", "startCmd": "serve", "cpuCount": 1 });
    let asked = client.post("/templates", body.clone()).await;
    assert_eq!(asked.status, 202, "{asked:?}");
    let (id, first) = (asked.json["templateID"].as_str().unwrap(), asked.json["buildID"].as_str().unwrap());
    assert_eq!(client.post(&format!("/templates/{id}/builds/{first}"), json!({})).await.status, 202);
    assert_eq!(finished(client, id, first).await["status"], "ready");
    assert_eq!(server.node.builder.last().start_cmd.as_deref(), Some("serve"));
    let listed = client.get("/templates").await.json;
    let has_name = |one: &Value| one["aliases"].as_array().unwrap().contains(&json!(name));
    assert!(listed.as_array().unwrap().iter().any(has_name), "{listed}");
    assert_eq!(client.post("/v2/sandboxes", json!({ "templateID": name })).await.status, 201);
    let again = client.post(&format!("/templates/{id}"), body).await.json;
    assert_eq!(again["templateID"], id);
    let v2 = client.post("/v2/templates", json!({ "alias": "newer" })).await;
    assert_eq!(v2.status, 202);
    let path = format!(
        "/templates/{}/builds/{}",
        v2.json["templateID"].as_str().unwrap(),
        v2.json["buildID"].as_str().unwrap()
    );
    assert_eq!(client.post(&path, json!({})).await.status, 400, "there is no Dockerfile");
    assert_eq!(client.post(&format!("/v2{path}"), steps(&["echo"])).await.status, 202);
}

/// What the stand-in for `docker` sends between the request for a build and its start.
#[tokio::test]
async fn older_clients_send_the_files_before_they_start_the_build() {
    let server = Server::start().await;
    let client = &server.client;
    let path = request_legacy_build(client, "web").await;
    let sent = send_context(client, &format!("{path}?arg=A%3D1&no_cache=1"), archive_of(&["a.txt", "b.txt"])).await;
    assert_eq!((sent.status, sent.text.as_str()), (204, ""), "{sent:?}");
    // The last one counts, and nothing of the other is left.
    assert_eq!(send_context(client, &format!("{path}?arg=A%3D2"), archive_of(&["a.txt"])).await.status, 204);
    assert_eq!(waiting_contexts(&server), 1);
    let build = start_legacy_build(client, &path).await;
    assert_eq!(build["status"], "ready", "{build}");
    let spec = server.node.builder.last();
    let BuildSource::Dockerfile(file) = spec.source else { panic!("not a Dockerfile") };
    assert_eq!((file.args["A"].as_str(), spec.force), ("2", false));
    let seen = server.node.builder.contexts.lock().unwrap().pop().unwrap();
    assert_eq!(seen.into_iter().collect::<Vec<_>>(), ["a.txt"]);
    until("the context is gone", || async { waiting_contexts(&server) == 0 }).await;
}

#[tokio::test]
async fn a_context_is_refused_for_builds_that_have_begun_and_those_of_others_and_leaves_nothing() {
    let server = Server::start_with(|config| {
        config.control.builds.per_team = 1;
        config.control.builds.team_uploads = 2000;
    })
    .await;
    let client = &server.client;
    let path = request_legacy_build(client, "web").await;
    let other = server.other_team().await;
    // As if there were none: an id that is not one's own is told by the template.
    assert_eq!(send_context(&other, &path, archive_of(&["a.txt"])).await.status, 403);
    assert_eq!(send_context(client, &path.replace("/builds/", "/builds/x"), archive_of(&[])).await.status, 404);
    let no_key = client.raw(Method::PUT, &path, &[], archive_of(&[])).await;
    assert_eq!(no_key.status, 401);
    assert_eq!(send_context(client, &path, "no archive".into()).await.status, 400);
    assert_eq!(send_context(client, &format!("{path}?surprise=1"), archive_of(&[])).await.status, 400);
    assert_eq!(send_context(client, &path, zeros(100_000).into()).await.status, 413);
    assert_eq!(waiting_contexts(&server), 0);

    // It holds the build's place among those of the team until the build has ended.
    assert_eq!(send_context(client, &path, zeros(10).into()).await.status, 204);
    let second = request_legacy_build(client, "second").await;
    let full = send_context(client, &second, zeros(10).into()).await;
    assert_eq!((full.status, &full.json["error_code"]), (429, &json!("too_many_builds")), "{full:?}");
    assert_eq!(start_legacy_build(client, &path).await["status"], "ready");
    assert_eq!(send_context(client, &path, zeros(10).into()).await.status, 409, "it has begun");
    until("there is place", || async { send_context(client, &second, zeros(10).into()).await.status == 204 }).await;

    let v3 = client.post("/v3/templates", json!({ "name": "newer" })).await.json;
    let v3 = format!(
        "/isopod/templates/{}/builds/{}/context",
        v3["templateID"].as_str().unwrap(),
        v3["buildID"].as_str().unwrap()
    );
    assert_eq!(send_context(client, &v3, zeros(10).into()).await.status, 400, "there is no Dockerfile");
}

/// Requests a build as E2B's older CLI does. Returns where its files go.
async fn request_legacy_build(client: &Client, name: &str) -> String {
    let body = json!({ "alias": name, "dockerfile": "FROM debian\nCOPY a.txt /\nRUN echo" });
    let asked = client.post("/templates", body).await;
    assert_eq!(asked.status, 202, "{asked:?}");
    let (id, build) = (asked.json["templateID"].as_str().unwrap(), asked.json["buildID"].as_str().unwrap());
    format!("/isopod/templates/{id}/builds/{build}/context")
}

async fn send_context(client: &Client, path: &str, archive: Bytes) -> support::Answer {
    client.raw(Method::PUT, path, &[("x-api-key", client.key.as_str())], archive).await
}

async fn start_legacy_build(client: &Client, path: &str) -> Value {
    let path = path.trim_start_matches("/isopod").trim_end_matches("/context");
    assert_eq!(client.post(path, json!({})).await.status, 202);
    let (id, build) = path.trim_start_matches("/templates/").split_once("/builds/").unwrap();
    finished(client, id, build).await
}

fn waiting_contexts(server: &Server) -> usize {
    let uploads = server.database().parent().unwrap().join("uploads");
    let count = |name: &str| std::fs::read_dir(uploads.join(name)).map_or(0, Iterator::count);
    count("contexts") + count("parts")
}

fn archive_of(names: &[&str]) -> Bytes {
    let mut archive = tar::Builder::new(Vec::new());
    for name in names {
        let mut header = tar::Header::new_gnu();
        header.set_size(name.len() as u64);
        header.set_mode(0o644);
        archive.append_data(&mut header, name, name.as_bytes()).unwrap();
    }
    archive.into_inner().unwrap().into()
}

/// A built-in name stays usable while the team's own template with that name has no build.
#[tokio::test]
async fn a_template_that_was_never_built_does_not_hide_one_of_the_servers() {
    let server = Server::start().await;
    let asked = server.client.post("/v3/templates", json!({ "name": "base" })).await;
    assert_eq!(asked.status, 202);
    let made = server.client.post("/v2/sandboxes", json!({ "templateID": "base" })).await;
    assert_eq!((made.status, made.json["templateID"].as_str()), (201, Some("base")));
    let own = server.client.post("/v3/templates", json!({ "name": "mine" })).await;
    assert_eq!(own.status, 202);
    assert_eq!(server.client.post("/v2/sandboxes", json!({ "templateID": "mine" })).await.status, 404);
}

/// A step of one team never counts as cached for another, unless the operator allows it.
#[tokio::test]
async fn a_build_uses_what_its_own_team_made_and_others_only_where_that_is_shared() {
    for is_shared in [false, true] {
        let server = Server::start_with(move |config| config.control.share_build_cache = is_shared).await;
        let mut scopes = Vec::new();
        for client in [server.client.clone(), server.client.clone(), server.other_team().await] {
            build(&client, json!({ "name": "web" }), steps(&["ssh-keygen"])).await;
            scopes.push(server.node.builder.last().cache_scope);
        }
        assert_eq!(scopes[0], scopes[1]);
        assert_eq!(scopes[0] == scopes[2], is_shared, "{scopes:?}");
        assert_eq!(scopes[0].is_none(), is_shared, "{scopes:?}");
    }
}

#[tokio::test]
async fn a_template_that_is_not_built_yet_has_the_date_of_its_base() {
    let server = Server::start().await;
    let listed = server.client.get("/templates").await.json;
    let of = |name: &str| listed.as_array().unwrap().iter().find(|one| one["templateID"] == name).unwrap().clone();
    let (base, interpreter) = (of("base"), of("code-interpreter-v1"));
    assert_eq!(base["createdAt"], json!("2023-11-14T22:13:20.000Z"));
    assert_eq!((&interpreter["createdAt"], &interpreter["updatedAt"]), (&base["createdAt"], &base["updatedAt"]));
}

/// E2B's SDKs have methods for these. A team may build its own.
#[tokio::test]
async fn a_template_of_e2b_that_is_missing_is_refused_by_name() {
    let server = Server::start().await;
    let client = &server.client;
    for name in ["mcp-gateway", "devcontainer"] {
        let message = json!(format!("E2B's template '{name}' is not supported by this server"));
        let created = client.post("/v2/sandboxes", json!({ "templateID": name })).await;
        let asked = client.post("/v3/templates", json!({ "name": "web" })).await.json;
        let of = |key: &str| asked[key].as_str().unwrap().to_owned();
        let path = format!("/v2/templates/{}/builds/{}", of("templateID"), of("buildID"));
        let built = client.post(&path, json!({ "fromTemplate": name, "steps": [] })).await;
        for answer in [created, built] {
            assert_eq!((answer.status, &answer.json["message"]), (501, &message));
        }
        assert_eq!(client.get(&format!("/templates/aliases/{name}")).await.status, 404);
        build(client, json!({ "name": name }), steps(&[])).await;
        made_of(&server, client, name).await;
    }
}
