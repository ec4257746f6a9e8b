//! A valid request to each route, so that the result is about access and not about an invalid request.

use bytes::Bytes;
use http::Method;
use isopod_api::DeclaredRoute;
use serde_json::{Value, json};

use super::things::{AGENT, EXECUTION, RUN, Things};

pub(crate) struct Request {
    pub(crate) method: Method,
    pub(crate) path: String,
    pub(crate) headers: Vec<(&'static str, &'static str)>,
    pub(crate) body: Bytes,
}

pub(crate) fn request_to(things: &Things, route: &DeclaredRoute) -> Request {
    let method = match route.method {
        "ANY" => Method::POST,
        other => other.parse().unwrap(),
    };
    let path = filled(things, route.path) + query_of(route.path, &method, things);
    let (mut headers, body) = match body_of(things, &method, route.path) {
        Some(body) => (vec![("content-type", "application/json")], body.to_string()),
        None => (Vec::new(), String::new()),
    };
    if route.path.starts_with("/runtime") {
        headers.push(("x-raro-client-id", "client-1"));
    }
    if route.path.starts_with("/dashboard") {
        headers.push(("sec-fetch-site", "same-origin"));
    }
    if route.path.starts_with("/ws/") {
        headers.extend([("connection", "upgrade"), ("upgrade", "websocket"), ("sec-websocket-version", "13")]);
        headers.push(("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="));
    }
    Request { method, path, headers, body: body.into() }
}

/// The path with the names of existing resources.
fn filled(things: &Things, pattern: &str) -> String {
    let id = match pattern.trim_start_matches("/api/v1").trim_start_matches("/v2").split('/').nth(1).unwrap() {
        "sandboxes" | "git" if pattern.starts_with("/api/v1") => &things.service_sandbox,
        "sandboxes" | "snapshots" => &things.sandbox,
        "events" if pattern.contains("webhooks") => &things.webhook,
        "events" => &things.sandbox,
        "agents" => AGENT,
        "tasks" => &things.task,
        "commands" => &things.command,
        "fragments" | "s" => &things.published,
        "templates" => &things.template,
        "isopod" if pattern.starts_with("/isopod/templates/{id}") => &things.template,
        "api-keys" => &things.key,
        "volumes" | "volumecontent" => &things.volume,
        "executions" => EXECUTION,
        _ => "thing-1",
    };
    let names = [
        ("{id}", id),
        ("{run_id}", RUN),
        ("{build}", &things.build),
        ("{alias}", "web"),
        ("{hash}", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"),
        ("{*key}", "note.txt"),
        ("{*path}", if pattern.contains("/artifacts/") { "note.txt/promote" } else { "note.txt" }),
        ("{*rest}", "history"),
        ("{tool}", "get_sandbox_status"),
        ("{name}", "list_files"),
        ("{member}", "person-1"),
        ("{node}", "node-1"),
        ("{token}", "token-1"),
        ("{version}", "0"),
        ("{*name}", "style.css"),
        ("{method}", "Start"),
    ];
    names.iter().fold(pattern.to_owned(), |path, (placeholder, name)| path.replace(placeholder, name))
}

fn query_of(pattern: &str, method: &Method, _: &Things) -> &'static str {
    match pattern {
        "/api/v1/sandboxes/{id}/files" => "?path=/note.txt",
        "/runtime/state" | "/runtime/signatures" => "?run_id=run-1",
        "/templates/{id}/tags/exists" => "?tag=v1",
        "/volumecontent/{id}/path" | "/volumecontent/{id}/dir" | "/volumecontent/{id}/file" => "?path=/note.txt",
        "/isopod/templates/builds" if *method == Method::POST => "?name=other",
        _ => "",
    }
}

fn body_of(things: &Things, method: &Method, pattern: &str) -> Option<Value> {
    if *method == Method::GET || *method == Method::HEAD {
        return None;
    }
    let in_service = json!({ "sandbox_id": things.service_sandbox });
    let with = |mut one: Value, more: Value| {
        one.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        one
    };
    Some(match (method.as_str(), pattern) {
        ("DELETE", "/templates/tags") => json!({ "name": "web", "tags": ["v1"] }),
        ("DELETE", _) => return None,
        (_, "/templates/tags") => json!({ "target": "web", "tags": ["v1"] }),
        (_, "/sandboxes/{id}/connect" | "/v2/sandboxes/{id}/connect" | "/sandboxes/{id}/timeout") => {
            json!({ "timeout": 60 })
        }
        (_, "/sandboxes/{id}/rollback") => json!({ "snapshotID": "snap" }),
        (_, "/sandboxes/{id}/refreshes") => json!({ "duration": 60 }),
        (_, "/api-keys/{id}") => json!({ "name": "renamed" }),
        (_, "/api/v1/sandboxes/{id}/execute" | "/api/v1/sandboxes/{id}/execute/stream") => json!({ "command": "echo" }),
        (_, "/api/v1/git/clone") => with(in_service, json!({ "repo_url": "https://h/x" })),
        (_, "/api/v1/git/commit") => with(in_service, json!({ "message": "fix: x" })),
        (_, "/api/v1/git/branch") => with(in_service, json!({ "name": "b" })),
        (_, "/api/v1/git/push") => in_service,
        (_, "/api/v1/agents/{id}/start-task") => json!({ "task_id": things.task }),
        (_, "/api/v1/executions/{id}/copy" | "/api/v1/executions/{id}/move") => {
            json!({ "from": "note.txt", "to": "b" })
        }
        (_, "/api/v1/teams/{id}") => json!({ "name": "thing" }),
        (_, "/runtime/{run_id}/execute") => json!({ "code": "x" }),
        (_, "/runtime/{run_id}/library") => json!({ "files": ["note.txt"] }),
        (_, "/templates/{id}" | "/v2/templates/{id}") if method == "PATCH" => json!({ "public": false }),
        (_, "/templates/{id}") => json!({ "dockerfile": "FROM debian:12" }),
        (_, "/v2/templates/{id}/builds/{build}") => json!({ "fromImage": "debian:12", "steps": [] }),
        (_, "/isopod/uploads/{token}") => return None,
        _ => json!({}),
    })
}
