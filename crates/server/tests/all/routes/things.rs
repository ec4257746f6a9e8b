//! One of everything that a path can name, all of one team.

use isopod_files::workspace::Workspace;
use isopod_store::Scope;
use serde_json::{Value, json};

use crate::support::{Client, Server, backend};

/// The owner of the sandbox service's resources.
pub(crate) const AGENT: &str = "ada";
pub(crate) const RUN: &str = "run-1";
pub(crate) const EXECUTION: &str = "execution-1";

pub(crate) struct Things {
    pub(crate) anybody: Client,
    pub(crate) sandbox: String,
    pub(crate) service_sandbox: String,
    pub(crate) command: String,
    pub(crate) published: String,
    pub(crate) task: String,
    pub(crate) template: String,
    pub(crate) build: String,
    pub(crate) key: String,
    pub(crate) webhook: String,
    pub(crate) volume: String,
    _workspace: tempfile::TempDir,
}

impl Things {
    pub(crate) async fn make() -> (Server, Self) {
        let workspace = tempfile::tempdir().unwrap();
        let path = workspace.path().to_owned();
        let server = Server::start_with(move |config| {
            config.control.workspace = Some(Workspace::new(&path));
            config.service.backend = Some(backend::fake() as _);
            config.control.allow_internal_webhooks = true;
        })
        .await;
        let client = &server.client;
        let agent = server.key_of(Scope::Agent(AGENT.to_owned())).await;
        made(client, "/api/v1/agents", json!({ "id": AGENT, "name": "Ada" })).await;
        let service_sandbox = text(&made(&agent, "/api/v1/sandboxes", json!({ "agent_id": AGENT })).await, "id");
        let execute = format!("/api/v1/sandboxes/{service_sandbox}/execute");
        made(&agent, &execute, json!({ "command": "echo x" })).await;
        let publish = json!({ "sbxId": service_sandbox, "port": 8080 });
        let published = text(&made(&agent, "/api/v1/fragments/published", publish).await, "id");
        let commands = agent.get("/api/v1/commands").await.json;
        let build = made(client, "/v3/templates", json!({ "name": "web" })).await;
        made(client, &format!("/runtime/{RUN}/execute"), json!({ "code": "x" })).await;
        let note = client.put(&format!("/api/v1/executions/{EXECUTION}/files/note.txt"), json!("x")).await;
        assert_eq!(note.status, 201, "{note:?}");
        let webhook = json!({
            "name": "hook", "url": "http://127.0.0.1:9/", "events": ["sandbox.lifecycle.created"],
            "signatureSecret": "0123456789abcdef", "enabled": false,
        });
        let things = Self {
            anybody: Client::new(server.address, ""),
            sandbox: server.create(json!({})).await,
            command: text(&commands["commands"][0], "id"),
            task: text(&made(&agent, "/api/v1/tasks", json!({ "title": "t" })).await, "id"),
            template: text(&build, "templateID"),
            build: text(&build, "buildID"),
            key: text(&made(client, "/api-keys", json!({ "name": "k" })).await, "id"),
            webhook: text(&made(client, "/events/webhooks", webhook).await, "id"),
            volume: text(&made(client, "/volumes", json!({ "name": "data" })).await, "volumeID"),
            service_sandbox,
            published,
            _workspace: workspace,
        };
        (server, things)
    }

    /// Nothing of it was changed or removed.
    pub(crate) async fn are_all_there(&self, owner: &Client) {
        let paths = [
            format!("/sandboxes/{}", self.sandbox),
            format!("/api/v1/sandboxes/{}", self.service_sandbox),
            format!("/api/v1/tasks/{}", self.task),
            format!("/api/v1/agents/{AGENT}"),
            format!("/templates/{}", self.template),
            format!("/events/webhooks/{}", self.webhook),
            format!("/volumes/{}", self.volume),
            format!("/api/v1/executions/{EXECUTION}/files/note.txt"),
            format!("/runtime/{RUN}/session"),
        ];
        for path in paths {
            assert_eq!(owner.get(&path).await.status, 200, "{path}");
        }
        assert_eq!(owner.get(&format!("/api/v1/executions/{EXECUTION}/files/note.txt")).await.text, "\"x\"");
        let status = &owner.get(&format!("/api/v1/sandboxes/{}", self.service_sandbox)).await.json["status"];
        assert_eq!(status, "running");
        let published = owner.get("/api/v1/fragments/published").await.json;
        assert_eq!(published["published"][0]["id"], json!(self.published));
        let keys = owner.get("/api-keys").await.json;
        assert!(keys.as_array().unwrap().iter().any(|key| key["id"] == json!(self.key) && key["name"] == "k"));
    }
}

async fn made(client: &Client, path: &str, body: Value) -> Value {
    let made = client.post(path, body).await;
    assert!((200..300).contains(&made.status), "{path}: {made:?}");
    made.json
}

fn text(value: &Value, field: &str) -> String {
    value[field].as_str().unwrap_or_else(|| panic!("no {field} in {value}")).to_owned()
}
