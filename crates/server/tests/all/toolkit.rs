//! The toolkit's rules, with sandboxes that run nothing. `cli` tests the tools with real ones.

use crate::support;

use std::time::Duration;

use http::Method;
use isopod_wire::node::EndReason;
use serde_json::{Value, json};

use support::Server;
use support::hostile::{ENDLESS, MUCH, NONSENSE};
use support::server::until;

const TOOLKIT: &str = "/api/v1/executions/e1/toolkit";

async fn call(server: &Server, tool: &str, arguments: Value) -> (u16, Value) {
    let answer = server.client.post(&format!("{TOOLKIT}/{tool}"), arguments).await;
    (answer.status, answer.json)
}

#[tokio::test]
async fn the_status_tells_of_the_sandbox_and_of_no_secret() {
    let server = Server::start().await;
    let (_, before) = call(&server, "get_sandbox_status", json!({})).await;
    assert_eq!((&before["status"], &before["success"]), (&json!("no_sandbox"), &json!(true)));
    assert_eq!((&before["timeout"], &before["max_lifetime_hours"]), (&json!(300), &json!(23.5)));
    let (_, url) = call(&server, "get_sandbox_url", json!({ "port": 3000 })).await;
    let id = url["sandbox_id"].as_str().unwrap();
    assert_eq!(url["url"], json!(format!("3000-{id}.isopod.localhost")));
    let (_, running) = call(&server, "get_sandbox_status", json!({})).await;
    assert_eq!((&running["status"], &running["sandbox_id"]), (&json!("running"), &json!(id)));
    assert!(running["uptime_seconds"].is_number() && running["uptime_hours"].is_number());
    assert_eq!(running["storage"], json!({ "configured": false }));
    let text = running.to_string().to_lowercase();
    assert!(!text.contains("token") && !text.contains("key"), "{text}");
}

/// The replacement of a lost sandbox is reported, once.
#[tokio::test]
async fn a_lost_sandbox_is_replaced_and_that_is_told() {
    let server = Server::start().await;
    let (_, first) = call(&server, "get_sandbox_url", json!({})).await;
    assert_eq!(first["restarted"], false);
    let id = first["sandbox_id"].as_str().unwrap();
    server.node.die(id, EndReason::OutOfMemory);
    until("its end is known", || async { server.client.get(&format!("/sandboxes/{id}")).await.status == 404 }).await;
    assert_eq!(call(&server, "get_sandbox_status", json!({})).await.1["status"], "stopped");
    let started = server.client.post(TOOLKIT, json!({})).await.json;
    assert_eq!((&started["restarted"], &started["old_sandbox_id"]), (&json!(true), &json!(id)));
    assert_ne!(started["sandbox_id"], first["sandbox_id"]);
    assert_eq!(call(&server, "get_sandbox_url", json!({})).await.1["restarted"], false);
}

/// The code in a sandbox chooses these responses.
#[tokio::test]
async fn what_a_sandbox_answers_is_bounded_however_much_it_sends() {
    let server = Server::start().await;
    let (_, code) = call(&server, "run_python_code", json!({ "code": MUCH })).await;
    assert_eq!((&code["success"], &code["truncated"]), (&json!(true), &json!(true)), "{}", code["error"]);
    let told = code.to_string().len();
    assert!((1 << 20..160 << 20).contains(&told), "{told} bytes");
    let (_, command) = call(&server, "run_command", json!({ "command": MUCH })).await;
    assert_eq!((&command["success"], &command["truncated"]), (&json!(true), &json!(true)), "{}", command["error"]);
    assert_eq!(command["stdout"].as_str().unwrap().len(), 10 << 20);
    let (_, small) = call(&server, "run_command", json!({ "command": "true" })).await;
    assert_eq!((&small["success"], &small["truncated"]), (&json!(true), &Value::Null), "{small}");
}

#[tokio::test]
async fn a_sandbox_that_answers_without_end_or_makes_no_sense_is_an_error() {
    let server = Server::start().await;
    assert_eq!(server.client.put(TOOLKIT, json!({ "timeout": 1 })).await.status, 200);
    for what in [ENDLESS, NONSENSE] {
        let (_, code) = call(&server, "run_python_code", json!({ "code": what })).await;
        assert_eq!(code["success"], json!(false), "{what}");
        let (_, command) = call(&server, "run_command", json!({ "command": what, "timeout_seconds": 0.1 })).await;
        assert_eq!(command["success"], json!(false), "{what}");
    }
    let (_, command) = call(&server, "run_command", json!({ "command": "true" })).await;
    assert_eq!(command["success"], json!(true), "{command}");
}

#[tokio::test]
async fn with_auto_reinitialize_off_a_lost_sandbox_is_not_replaced() {
    let server = Server::start().await;
    let config = json!({ "auto_reinitialize": false, "template": "base" });
    assert_eq!(server.client.put(TOOLKIT, config).await.status, 200);
    let (_, first) = call(&server, "get_sandbox_url", json!({})).await;
    let id = first["sandbox_id"].as_str().unwrap();
    server.node.die(id, EndReason::GuestDied);
    until("its end is known", || async { server.client.get(&format!("/sandboxes/{id}")).await.status == 404 }).await;
    let (status, refused) = call(&server, "run_command", json!({ "command": "true" })).await;
    assert_eq!((status, &refused["success"], &refused["ok"]), (200, &json!(false), &json!(false)));
    assert!(refused["error"].as_str().unwrap().contains("restart_sandbox"), "{refused}");
    let (_, restarted) = call(&server, "restart_sandbox", json!({})).await;
    assert_eq!((&restarted["success"], &restarted["old_sandbox_id"]), (&json!(true), &json!(id)));
    assert!(restarted["new_sandbox_id"].is_string());
}

/// Replaced before the platform would end it.
#[tokio::test]
async fn a_sandbox_that_has_lived_long_enough_is_replaced_before_the_call() {
    let server = Server::start().await;
    let hours = 0.2 / 3600.0;
    server.client.put(TOOLKIT, json!({ "max_lifetime_hours": hours })).await;
    let (_, first) = call(&server, "get_sandbox_url", json!({})).await;
    tokio::time::sleep(Duration::from_millis(250)).await;
    let (_, second) = call(&server, "get_sandbox_url", json!({})).await;
    assert_ne!(first["sandbox_id"], second["sandbox_id"]);
    assert_eq!(second["restarted"], true);
    assert_eq!(server.node.count(), 1);
}

/// However many callers race, there is one sandbox.
#[tokio::test]
async fn calls_at_once_share_one_sandbox() {
    let server = Server::start().await;
    let calls = (0..20).map(|_| call(&server, "get_sandbox_url", json!({})));
    let answers = futures::future::join_all(calls).await;
    assert!(answers.iter().all(|(status, told)| *status == 200 && told["sandbox_id"] == answers[0].1["sandbox_id"]));
    assert_eq!(server.node.count(), 1);
    assert_eq!(server.client.delete(TOOLKIT).await.json, json!({ "killed": true }));
    assert_eq!(server.client.delete(TOOLKIT).await.json, json!({ "killed": false }));
}

/// A caller that disconnects leaves nothing. Its sandbox ends by its own timeout.
#[tokio::test]
async fn a_sandbox_that_nobody_calls_any_more_ends_by_itself() {
    let server = Server::start().await;
    server.client.put(TOOLKIT, json!({ "timeout": 1 })).await;
    call(&server, "get_sandbox_url", json!({})).await;
    assert_eq!(server.node.count(), 1);
    until("it is gone", || async { server.node.count() == 0 }).await;
    assert_eq!(call(&server, "get_sandbox_status", json!({})).await.1["status"], "stopped");
}

#[tokio::test]
async fn wrong_arguments_and_tools_are_refused_before_there_is_a_sandbox() {
    let server = Server::start().await;
    for (tool, arguments) in [
        ("run_python_code", json!({})),
        ("run_python_code", json!({ "code": 1 })),
        ("run_command", json!({ "command": "x", "timeout_seconds": 0 })),
        ("run_command", json!({ "command": "x", "timeout_seconds": 1e300 })),
        ("install_package", json!({ "package": "--index-url=http://x" })),
        ("list_files", json!({ "dir": "/" })),
        ("get_sandbox_url", json!({ "port": 70000 })),
        ("upload_file", json!({ "local_path": "/etc/passwd", "remote_path": "/x" })),
        ("upload_file", json!({ "local_path": "x", "remote_path": "/x", "content_base64": "?" })),
        ("download_file", json!({ "remote_path": "/x", "local_path": "/etc/passwd" })),
        ("get_sandbox_status", json!({ "x": 1 })),
        ("get_sandbox_status", json!([1])),
    ] {
        let (status, told) = call(&server, tool, arguments.clone()).await;
        assert_eq!(status, 400, "{tool} {arguments}: {told}");
    }
    assert_eq!(call(&server, "rm", json!({})).await.0, 404);
    for bad in [json!({ "timeout": 0 }), json!({ "max_lifetime_hours": 25 }), json!({ "include_tools": ["rm"] })] {
        assert_eq!(server.client.put(TOOLKIT, bad.clone()).await.status, 400, "{bad}");
    }
    server.client.put(TOOLKIT, json!({ "exclude_tools": ["run_command"] })).await;
    assert_eq!(call(&server, "run_command", json!({ "command": "x" })).await.0, 403);
    assert_eq!(server.node.count(), 0);
    assert_eq!(server.client.get("/api/v1/toolkit").await.json.as_array().unwrap().len(), 12);
    let config = server.client.call(Method::GET, TOOLKIT, &[], None).await.json;
    assert_eq!(config["exclude_tools"], json!(["run_command"]));
}

/// A refusal of the host is an API error, not a result of a tool.
#[tokio::test]
async fn a_full_host_is_told_with_its_status() {
    let server = Server::start().await;
    server.node.faults.full.store(true, std::sync::atomic::Ordering::Relaxed);
    let (status, told) = call(&server, "run_command", json!({ "command": "true" })).await;
    assert_eq!((status, &told["error_code"]), (503, &json!("sandbox_capacity_unavailable")));
}
