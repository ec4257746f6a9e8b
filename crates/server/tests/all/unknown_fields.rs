//! SDKs that are newer than the server: every request of E2B's SDKs, CLI and REST API is repeated with unknown fields and query
//! parameters, and gets the same response as without them.

use crate::support;

use bytes::Bytes;
use http::Method;
use isopod_api::DeclaredRoute;
use isopod_control::http::routes;
use isopod_files::workspace::Workspace;
use serde_json::{Value, json};

use support::server::until;
use support::{Answer, Server};

/// What a request is sent with.
#[derive(Clone, Copy, PartialEq)]
enum Sender {
    Today,
    /// Adds fields to every object of the body, and a query parameter.
    Future,
}

/// Maps with names of the user's own, and the one place where an unknown field is refused.
const LEFT_ALONE: [&str; 3] = ["metadata", "envVars", "network"];

/// Routes in E2B's API that no client of E2B sends with fields that Isopod does not know.
const NOT_SENT: [(&str, &str, &str); 10] = [
    ("POST", "/api-keys", "refuses unknown fields, which could limit a key: see below"),
    ("POST", "/api-keys/{id}/rotate", "Isopod's own"),
    ("POST", "/sandboxes/{id}/rollback", "Isopod's own"),
    ("GET", "/nodes", "Isopod's answer, and no SDK asks"),
    ("POST", "/isopod/node/drain", "Isopod's own"),
    ("POST", "/isopod/node/uncordon", "Isopod's own"),
    ("GET", "/isopod/templates/{id}/image", "Isopod's own"),
    ("POST", "/isopod/templates/builds", "Isopod's own"),
    ("PUT", "/isopod/templates/{id}/builds/{build}/context", "Isopod's own"),
    ("POST", "/isopod/templates/builds/{build}/cancel", "Isopod's own"),
];

#[tokio::test]
async fn every_request_of_the_sdks_is_answered_the_same_with_fields_that_nobody_knows() {
    let [today, future] = [responses(Sender::Today).await, responses(Sender::Future).await];
    for (expected, got) in today.iter().zip(&future) {
        let request = format!("{} {}", got.method, got.path);
        assert!((200..300).contains(&expected.answer.status), "{request}: {:?}", expected.answer);
        assert_eq!(got.answer.status, expected.answer.status, "{request}: {:?}", got.answer);
    }
    assert_eq!(today.len(), future.len());
    let declared: Vec<_> = routes().declared().collect();
    for route in &declared {
        let is_sent = future.iter().any(|sent| sent.route(&declared) == Some((route.method, route.path)));
        let is_excused = NOT_SENT.iter().any(|(method, path, _)| (*method, *path) == (route.method, route.path));
        assert!(is_sent != is_excused, "{} {} is sent: {is_sent}, in NOT_SENT: {is_excused}", route.method, route.path);
    }
}

/// A request and its response.
struct Sent {
    method: Method,
    path: String,
    answer: Answer,
}

impl Sent {
    /// The route that took it: of those that match, the one with the fewest placeholders.
    fn route(&self, declared: &[DeclaredRoute]) -> Option<(&'static str, &'static str)> {
        let path = self.path.split('?').next().unwrap();
        let of_method = declared.iter().filter(|route| route.method == self.method.as_str());
        let matching = of_method.filter(|route| {
            let (parts, pattern) = (path.split('/'), route.path.split('/'));
            parts.clone().count() == pattern.clone().count()
                && parts.zip(pattern).all(|(part, wanted)| wanted.starts_with('{') || wanted == part)
        });
        matching.min_by_key(|route| route.path.matches('{').count()).map(|route| (route.method, route.path))
    }
}

/// The requests of a program that uses the whole API, in an order in which each succeeds.
async fn responses(sender: Sender) -> Vec<Sent> {
    let workspace = tempfile::tempdir().unwrap();
    let path = workspace.path().to_owned();
    let server = Server::start_with(move |config| config.control.workspace = Some(Workspace::new(&path))).await;
    let mut session = Session { sender, server, answers: Vec::new() };
    let volume = session.volumes().await;
    session.templates().await;
    session.sandboxes(&volume).await;
    session.keys().await;
    session.webhooks().await;
    session.ends().await;
    session.answers
}

struct Session {
    sender: Sender,
    server: Server,
    answers: Vec<Sent>,
}

impl Session {
    async fn send(&mut self, method: Method, path: &str, body: Option<Value>) -> Value {
        let key = self.server.client.key.clone();
        self.send_as(&[("x-api-key", &key)], method, path, body).await
    }

    async fn send_as(&mut self, auth: &[(&str, &str)], method: Method, path: &str, body: Option<Value>) -> Value {
        let (path, body) = self.dressed(path, body);
        let headers = [auth, &[("content-type", "application/json")]].concat();
        let bytes = body.map_or_else(Bytes::new, |body| body.to_string().into());
        let answer = self.server.client.raw(method.clone(), &path, &headers, bytes).await;
        let json = answer.json.clone();
        self.answers.push(Sent { method, path, answer });
        json
    }

    fn dressed(&self, path: &str, body: Option<Value>) -> (String, Option<Value>) {
        match self.sender {
            Sender::Today => (path.to_owned(), body),
            Sender::Future => {
                let joint = if path.contains('?') { '&' } else { '?' };
                // This body is what `network` is in others.
                let body = if path.ends_with("/network") { body } else { body.map(with_more) };
                (format!("{path}{joint}fromTheFuture=1"), body)
            }
        }
    }

    async fn volumes(&mut self) -> String {
        let made = self.send(Method::POST, "/volumes", Some(json!({ "name": "data" }))).await;
        let (id, token) = (text(&made, "volumeID"), text(&made, "token"));
        self.send(Method::GET, "/volumes", None).await;
        self.send(Method::GET, &format!("/volumes/{id}"), None).await;
        let bearer = format!("Bearer {token}");
        let auth = [("authorization", bearer.as_str())];
        let content = |rest: &str| format!("/volumecontent/{id}/{rest}");
        self.send_as(&auth, Method::POST, &content("dir?path=/d&force=true"), None).await;
        self.send_as(&auth, Method::PUT, &content("file?path=/d/f"), None).await;
        self.send_as(&auth, Method::GET, &content("file?path=/d/f"), None).await;
        self.send_as(&auth, Method::GET, &content("dir?path=/&depth=2"), None).await;
        self.send_as(&auth, Method::GET, &content("path?path=/d"), None).await;
        self.send_as(&auth, Method::PATCH, &content("path?path=/d/f"), Some(json!({ "mode": 0o600 }))).await;
        self.send_as(&auth, Method::DELETE, &content("path?path=/d/f"), None).await;
        let short = self.send(Method::POST, "/volumes", Some(json!({ "name": "short-lived" }))).await;
        self.send(Method::DELETE, &format!("/volumes/{}", text(&short, "volumeID")), None).await;
        "data".to_owned()
    }

    async fn templates(&mut self) {
        let legacy = json!({ "dockerfile": "FROM debian:12", "alias": "old", "cpuCount": 1, "memoryMB": 512 });
        let old = self.send(Method::POST, "/templates", Some(legacy.clone())).await;
        let (id, build) = (text(&old, "templateID"), text(&old, "buildID"));
        self.send(Method::POST, &format!("/templates/{id}/builds/{build}"), None).await;
        self.send(Method::POST, &format!("/templates/{id}"), Some(legacy)).await;
        self.send(Method::POST, "/v2/templates", Some(json!({ "alias": "second", "cpuCount": 1 }))).await;
        let wanted = json!({ "name": "web", "tags": ["v1"], "cpuCount": 1, "memoryMB": 512 });
        let made = self.send(Method::POST, "/v3/templates", Some(wanted)).await;
        let (id, build) = (text(&made, "templateID"), text(&made, "buildID"));
        let link = self.send(Method::GET, &format!("/templates/{id}/files/{}", "a".repeat(64)), None).await;
        let upload = text(&link, "url").strip_prefix("http://localhost").unwrap().to_owned();
        self.send_as(&[], Method::PUT, &upload, None).await;
        let start = json!({
            "fromImage": "debian:12", "force": false, "startCmd": "sleep 1", "readyCmd": "true",
            "fromImageRegistry": { "type": "registry", "username": "u", "password": "p" },
            // The additional fields of a COPY step in today's SDKs, on a step that needs no upload.
            "steps": [{ "type": "RUN", "args": ["true"], "force": true, "forceUpload": true, "resolveSymlinks": false }],
        });
        self.send(Method::POST, &format!("/v2/templates/{id}/builds/{build}"), Some(start)).await;
        let status = format!("/templates/{id}/builds/{build}/status?logsOffset=0");
        let client = &self.server.client;
        until("the build is ready", async || client.get(&status).await.json["status"] == "ready").await;
        self.send(Method::GET, &status, None).await;
        self.send(Method::GET, &format!("/templates/{id}/builds/{build}/logs?limit=10"), None).await;
        self.send(Method::POST, "/templates/tags", Some(json!({ "target": "web:v1", "tags": ["v2"] }))).await;
        for rest in ["", "/count", "/exists?tag=v1"] {
            self.send(Method::GET, &format!("/templates/{id}/tags{rest}"), None).await;
        }
        self.send(Method::DELETE, "/templates/tags", Some(json!({ "name": "web", "tags": ["v2"] }))).await;
        self.send(Method::GET, "/templates?limit=10", None).await;
        self.send(Method::GET, "/v2/templates?limit=10", None).await;
        self.send(Method::GET, &format!("/templates/{id}"), None).await;
        self.send(Method::GET, "/templates/aliases/web", None).await;
        for path in ["/templates", "/v2/templates"] {
            self.send(Method::PATCH, &format!("{path}/{id}"), Some(json!({ "public": true }))).await;
        }
        self.send(Method::DELETE, &format!("/templates/{id}"), None).await;
    }

    async fn sandboxes(&mut self, volume: &str) {
        let create = json!({
            "templateID": "base", "timeout": 60, "autoPause": true, "autoResume": { "enabled": true },
            "allow_internet_access": true, "network": { "denyOut": ["8.8.8.8"], "later": null },
            "metadata": { "a": "b" }, "envVars": { "X": "1" },
            "volumeMounts": [{ "name": volume, "path": "/data" }],
        });
        self.send(Method::POST, "/sandboxes", Some(create.clone())).await;
        let made = self.send(Method::POST, "/v2/sandboxes", Some(create)).await;
        let id = text(&made, "sandboxID");
        let of = |rest: &str| format!("/sandboxes/{id}/{rest}");
        self.send(Method::GET, "/v2/sandboxes?metadata=a%3Db&state=running&limit=10", None).await;
        self.send(Method::GET, "/sandboxes", None).await;
        self.send(Method::GET, &format!("/sandboxes/metrics?sandbox_ids={id}"), None).await;
        self.send(Method::GET, &format!("/sandboxes/{id}"), None).await;
        for path in [of("timeout"), of("connect"), format!("/v2{}", of("connect"))] {
            self.send(Method::POST, &path, Some(json!({ "timeout": 60 }))).await;
        }
        self.send(Method::POST, &of("refreshes"), Some(json!({ "duration": 60 }))).await;
        self.send(Method::GET, &of("metrics?start=1&end=2"), None).await;
        self.send(Method::GET, &of("logs?limit=5"), None).await;
        self.send(Method::GET, &format!("/v2{}", of("logs?limit=5")), None).await;
        let network = json!({ "denyOut": ["8.8.8.8"], "allow_internet_access": true });
        self.send(Method::PUT, &of("network"), Some(network)).await;
        self.send(Method::POST, &of("snapshots"), Some(json!({ "name": "kept", "memory": true }))).await;
        self.send(Method::GET, &format!("/snapshots?sandboxID={id}&limit=10"), None).await;
        for path in [of("fork"), format!("/v2{}", of("fork"))] {
            self.send(Method::POST, &path, Some(json!({ "count": 1, "timeout": 60, "memory": true }))).await;
        }
        self.send(Method::POST, &of("pause"), Some(json!({ "memory": true, "requireHealthyGuest": false }))).await;
        self.send(Method::POST, &of("resume"), Some(json!({ "timeout": 60, "autoPause": false }))).await;
        self.send(Method::GET, "/events/sandboxes?limit=5&orderAsc=true", None).await;
        self.send(Method::GET, &format!("/events/sandboxes/{id}?limit=5"), None).await;
        self.send(Method::DELETE, &format!("/sandboxes/{id}"), None).await;
    }

    async fn keys(&mut self) {
        let made = self.server.client.post("/api-keys", json!({ "name": "k" })).await.json;
        let path = format!("/api-keys/{}", text(&made, "id"));
        self.send(Method::GET, "/api-keys", None).await;
        self.send(Method::PATCH, &path, Some(json!({ "name": "other" }))).await;
        self.send(Method::DELETE, &path, None).await;
    }

    async fn webhooks(&mut self) {
        let hook = json!({
            "name": "hook", "url": "https://1.1.1.1/", "events": ["sandbox.lifecycle.created"],
            "signatureSecret": "0123456789abcdef",
        });
        let made = self.send(Method::POST, "/events/webhooks", Some(hook)).await;
        let path = format!("/events/webhooks/{}", text(&made, "id"));
        self.send(Method::GET, "/events/webhooks", None).await;
        self.send(Method::GET, &path, None).await;
        self.send(Method::PATCH, &path, Some(json!({ "enabled": false }))).await;
        self.send(Method::DELETE, &path, None).await;
    }

    async fn ends(&mut self) {
        self.send(Method::GET, "/teams", None).await;
        self.send(Method::GET, "/default-templates", None).await;
    }
}

/// Adds an unknown field to every object of a body.
fn with_more(value: Value) -> Value {
    match value {
        Value::Object(fields) => {
            let deeper = |(name, value): (String, Value)| {
                let value = if LEFT_ALONE.contains(&name.as_str()) { value } else { with_more(value) };
                (name, value)
            };
            let unknown = [("fromTheFuture".to_owned(), json!({ "deep": [{ "er": null }] }))];
            Value::Object(fields.into_iter().map(deeper).chain(unknown).collect())
        }
        Value::Array(values) => values.into_iter().map(with_more).collect(),
        plain => plain,
    }
}

/// One of them could be a restriction.
#[tokio::test]
async fn an_unknown_field_of_the_network_is_refused_by_name() {
    let server = Server::start().await;
    let id = server.create(json!({})).await;
    let body = json!({ "templateID": "base", "network": { "denyEverythingElse": true } });
    let created = server.client.post("/v2/sandboxes", body).await;
    let changed = server.client.put(&format!("/sandboxes/{id}/network"), json!({ "denyEverythingElse": [] })).await;
    for answer in [created, changed] {
        let message = "network.denyEverythingElse is not supported by this server";
        assert_eq!((answer.status, &answer.json["message"]), (501, &json!(message)));
    }
    assert_eq!(server.node.count(), 1);
    let unset = server.client.put(&format!("/sandboxes/{id}/network"), json!({ "denyEverythingElse": null })).await;
    assert_eq!(unset.status, 204);
}

/// An unknown field could limit what a key may do. Rotating one is Isopod's own, on a path beside E2B's.
#[tokio::test]
async fn new_and_rotated_keys_refuse_what_they_do_not_know() {
    let server = Server::start().await;
    for misspelt in ["expires_in", "Scope", "onlyUntil"] {
        let refused = server.client.post("/api-keys", json!({ "name": "k", misspelt: 60 })).await;
        assert_eq!(refused.status, 400, "{misspelt}");
    }
    let made = server.client.post("/api-keys", json!({ "name": "k" })).await.json;
    let rotate = format!("/api-keys/{}/rotate", text(&made, "id"));
    assert_eq!(server.client.post(&rotate, json!({ "overlap": 1, "fromTheFuture": 1 })).await.status, 400);
    assert_eq!(server.client.post(&rotate, json!({ "overlap": 1 })).await.status, 201);
}

fn text(value: &Value, field: &str) -> String {
    value[field].as_str().unwrap_or_else(|| panic!("no {field} in {value}")).to_owned()
}
