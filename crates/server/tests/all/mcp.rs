//! `/mcp`: who may call it, whose the sessions are, and when they end. The official SDKs are in tests/mcp.

use std::time::Duration;

use bytes::Bytes;
use http::Method;
use isopod_mcp::HttpConfig;
use isopod_server::ServerConfig;
use isopod_store::Scope;
use serde_json::{Value, json};

use crate::support;
use support::server::until;
use support::{Answer, Client, Server};

const ACCEPT: (&str, &str) = ("accept", "application/json, text/event-stream");

/// A client in a session.
struct Session {
    client: Client,
    id: String,
}

async fn post(client: &Client, path: &str, headers: &[(&str, &str)], message: &Value) -> Answer {
    let headers = [headers, &[ACCEPT]].concat();
    client.call(Method::POST, path, &headers, Some(message.clone())).await
}

fn initialize() -> Value {
    let client = json!({ "name": "test", "version": "1" });
    let params = json!({ "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": client });
    json!({ "jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params })
}

/// The last message of a stream.
fn message_of(answer: &Answer) -> Value {
    let lines = answer.text.lines().filter_map(|line| line.strip_prefix("data:"));
    lines.filter_map(|line| serde_json::from_str(line).ok()).next_back().unwrap_or(Value::Null)
}

impl Session {
    async fn open(client: &Client, path: &str) -> Self {
        let answer = post(client, path, &[], &initialize()).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        assert_eq!(message_of(&answer)["result"]["serverInfo"]["name"], "isopod", "{answer:?}");
        let id = answer.headers["mcp-session-id"].to_str().unwrap().to_owned();
        let session = Self { client: client.clone(), id };
        let ready = session.send(&json!({ "jsonrpc": "2.0", "method": "notifications/initialized" })).await;
        assert_eq!(ready.status, 202, "{ready:?}");
        session
    }

    async fn send(&self, message: &Value) -> Answer {
        self.send_as(&self.client, message).await
    }

    async fn send_as(&self, client: &Client, message: &Value) -> Answer {
        post(client, "/mcp", &[("mcp-session-id", &self.id)], message).await
    }

    async fn call(&self, name: &str, arguments: Value) -> Value {
        let params = json!({ "name": name, "arguments": arguments });
        let answer = self.send(&json!({ "jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": params })).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        message_of(&answer)["result"].clone()
    }

    async fn create(&self) -> String {
        let made = self.call("create_sandbox", json!({ "template": "base" })).await;
        made["structuredContent"]["sandbox"].as_str().unwrap_or_else(|| panic!("{made}")).to_owned()
    }

    async fn end(&self) -> Answer {
        self.client.call(Method::DELETE, "/mcp", &[("mcp-session-id", &self.id)], None).await
    }
}

fn ping() -> Value {
    json!({ "jsonrpc": "2.0", "id": 9, "method": "ping" })
}

async fn sandboxes(client: &Client) -> Vec<String> {
    let listed = client.get("/v2/sandboxes").await.json;
    listed.as_array().unwrap().iter().map(|one| one["sandboxID"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn a_client_without_a_key_learns_how_to_authenticate() {
    let server = Server::start().await;
    for (headers, error) in [(vec![], ""), (vec![("authorization", "Bearer wrong")], "error=\"invalid_token\", ")] {
        let headers = [&headers[..], &[("host", "localhost:3000")]].concat();
        let refused = server.client.raw(Method::POST, "/mcp", &headers, Bytes::new()).await;
        assert_eq!(refused.status, 401);
        let metadata = "http://localhost:3000/.well-known/oauth-protected-resource/mcp";
        assert_eq!(refused.headers["www-authenticate"], format!("Bearer {error}resource_metadata=\"{metadata}\""));
    }
    for path in ["/.well-known/oauth-protected-resource", "/.well-known/oauth-protected-resource/mcp"] {
        let found = server.client.raw(Method::GET, path, &[("host", "localhost:3000")], Bytes::new()).await;
        let methods = json!(["header"]);
        assert_eq!(
            found.json,
            json!({ "resource": "http://localhost:3000/mcp", "resource_name": "Isopod", "bearer_methods_supported": methods })
        );
    }
    let bearer = format!("Bearer {}", server.client.key);
    let headers = [("authorization", bearer.as_str()), ("content-type", "application/json"), ACCEPT];
    let answer = server.client.raw(Method::POST, "/mcp", &headers, initialize().to_string().into()).await;
    assert_eq!(answer.status, 200, "{answer:?}");
}

#[tokio::test]
async fn a_session_and_its_sandbox_are_for_one_key_and_end_together() {
    let server = Server::start().await;
    let session = Session::open(&server.client, "/mcp").await;
    for other in [server.key_of(Scope::Team).await, server.other_team().await] {
        let refused = session.send_as(&other, &ping()).await;
        assert_eq!((refused.status, refused.json["error"]["code"].clone()), (404, json!(-32001)), "{refused:?}");
        let ended = other.call(Method::DELETE, "/mcp", &[("mcp-session-id", &session.id)], None).await;
        assert_eq!(ended.status, 404);
    }
    let made = session.create().await;
    assert_eq!(sandboxes(&server.client).await, [made]);
    assert_eq!(session.end().await.status, 204);
    assert_eq!(sandboxes(&server.client).await, Vec::<String>::new());
    assert_eq!(session.send(&ping()).await.status, 404);
    assert_eq!(session.end().await.status, 404);
}

#[tokio::test]
async fn tools_may_do_what_the_key_may_do_and_are_audited() {
    let server = Server::start().await;
    let reader = server.key_of(Scope::ReadOnly).await;
    let session = Session::open(&reader, "/mcp?all_sandboxes=true").await;
    let refused = session.call("create_sandbox", json!({ "template": "base" })).await;
    assert_eq!(refused["isError"], true, "{refused}");
    assert!(refused["content"][0]["text"].as_str().unwrap().contains("may not do this"), "{refused}");
    // E2B's list is for keys of the whole team.
    let listed = session.call("list_sandboxes", json!({})).await;
    assert_eq!(listed["isError"], true, "{listed}");
    let owner = Session::open(&server.client, "/mcp?all_sandboxes=true").await;
    let listed = owner.call("list_sandboxes", json!({})).await;
    assert_eq!(listed["structuredContent"]["sandboxes"], json!([]), "{listed}");
    let agent = server.key_of(Scope::Agent("a".to_owned())).await;
    assert_eq!(post(&agent, "/mcp", &[], &initialize()).await.status, 403);
    let lines = server.client.get("/api/v1/audit?limit=1000").await.json["lines"].clone();
    let lines: Vec<_> =
        lines.as_array().unwrap().iter().map(|line| (&line["action"], &line["task"], &line["status"])).collect();
    assert!(
        lines.contains(&(&json!("mcp.message"), &json!("mcp/tools/call create_sandbox"), &json!(200))),
        "{lines:?}"
    );
    assert!(lines.contains(&(&json!("sandbox.create"), &Value::Null, &json!(403))), "{lines:?}");
}

fn two_sessions(config: &mut ServerConfig) {
    config.mcp = Some(HttpConfig { max_sessions_of_owner: 2, max_sessions: 3, ..HttpConfig::default() });
}

#[tokio::test]
async fn sessions_are_limited_for_each_key_and_for_all() {
    let server = Server::start_with(two_sessions).await;
    let first = Session::open(&server.client, "/mcp").await;
    let _second = Session::open(&server.client, "/mcp").await;
    assert_eq!(post(&server.client, "/mcp", &[], &initialize()).await.status, 429);
    let other = server.other_team().await;
    let third = Session::open(&other, "/mcp").await;
    assert_eq!(post(&other, "/mcp", &[], &initialize()).await.status, 503);
    assert_eq!(third.end().await.status, 204);
    assert_eq!(first.end().await.status, 204);
    let again = || async { post(&server.client, "/mcp", &[], &initialize()).await.status == 200 };
    until("the place is free again", again).await;
    let session = Session { client: server.client.clone(), id: String::new() };
    assert_eq!(session.send(&ping()).await.status, 404);
}

#[tokio::test]
async fn an_idle_session_ends_with_its_sandboxes() {
    let server = Server::start_with(|config| {
        config.mcp = Some(HttpConfig { idle: Duration::from_millis(200), ..HttpConfig::default() });
    })
    .await;
    let session = Session::open(&server.client, "/mcp").await;
    session.create().await;
    until("the sandbox is gone", || async { sandboxes(&server.client).await.is_empty() }).await;
    assert_eq!(session.send(&ping()).await.status, 404);
}

/// Both after a crash and after a stop.
#[tokio::test]
async fn a_session_is_found_again_by_the_next_server() {
    let records = tempfile::tempdir().unwrap();
    let directory = records.path().join("mcp");
    let mut server = Server::start_with(move |config| {
        config.mcp = Some(HttpConfig { records: Some(directory.clone()), ..HttpConfig::default() });
    })
    .await;
    let mut session = Session::open(&server.client, "/mcp").await;
    let mut made = vec![session.create().await];
    for crashes in [true, false] {
        match crashes {
            true => server.crash().await,
            false => server.stop().await,
        }
        server = server.start_again().await;
        session.client = server.client.clone();
        let stranger = server.key_of(Scope::Team).await;
        assert_eq!(session.send_as(&stranger, &ping()).await.status, 404);
        assert_eq!(session.send(&ping()).await.status, 200);
        made.push(session.create().await);
        let listed = session.call("list_sandboxes", json!({})).await["structuredContent"]["sandboxes"].clone();
        let mut listed: Vec<_> =
            listed.as_array().unwrap().iter().map(|one| one["sandbox"].as_str().unwrap()).collect();
        listed.sort_unstable();
        made.sort_unstable();
        assert_eq!(listed, made);
    }
    assert_eq!(std::fs::read_dir(records.path().join("mcp")).unwrap().count(), 1);
    assert_eq!(session.end().await.status, 204);
    assert_eq!(sandboxes(&server.client).await, Vec::<String>::new());
    assert_eq!(std::fs::read_dir(records.path().join("mcp")).unwrap().count(), 0);
}

#[tokio::test]
async fn pages_of_others_and_messages_that_are_none_are_refused() {
    let server = Server::start().await;
    for headers in [
        [("origin", "https://evil.example"), ("host", "localhost")],
        [("origin", "http://evil.example"), ("host", "evil.example")],
        [("sec-fetch-site", "same-origin"), ("host", "evil.example")],
    ] {
        assert_eq!(post(&server.client, "/mcp", &headers, &initialize()).await.status, 403, "{headers:?}");
    }
    let own = [("origin", "http://localhost:3000"), ("host", "localhost:3000")];
    assert_eq!(post(&server.client, "/mcp", &own, &initialize()).await.status, 200);
    for wrong in ["?x=1", "?session=", "?max_sandboxes=0"] {
        assert_eq!(post(&server.client, &format!("/mcp{wrong}"), &[], &initialize()).await.status, 400, "{wrong}");
    }
    let session = Session::open(&server.client, "/mcp").await;
    for wrong in [json!([]), json!(7), json!({ "jsonrpc": "2.0", "id": [], "method": "ping" }), Value::Null] {
        let answer = session.send(&wrong).await;
        assert!((400..500).contains(&answer.status), "{wrong} {answer:?}");
    }
    let large = json!({ "jsonrpc": "2.0", "id": 1, "method": "ping", "params": { "x": "x".repeat(17 << 20) } });
    assert_eq!(session.send(&large).await.status, 413);
    assert_eq!(session.send(&ping()).await.status, 200);
}

#[tokio::test]
async fn it_can_be_switched_off() {
    let server = Server::start_with(|config| config.mcp = None).await;
    assert_eq!(post(&server.client, "/mcp", &[], &initialize()).await.status, 404);
    assert_eq!(server.client.get("/.well-known/oauth-protected-resource").await.status, 404);
}
