//! Timeouts, pauses, endings, and what survives a server.

use crate::support;

use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use http::Method;
use isopod_wire::node::{EndReason, NodeState};
use serde_json::json;

use support::Server;
use support::hostile::{ENDLESS_HEAD, ENDLESS_PROMISES, HANGING, NO_HTTP};
use support::server::until;

async fn state(server: &Server, id: &str) -> Option<String> {
    let answer = server.client.get(&format!("/sandboxes/{id}")).await;
    answer.json["state"].as_str().map(str::to_owned)
}

async fn until_gone(server: &Server, id: &str) {
    until("the sandbox is gone", || async { state(server, id).await.is_none() }).await;
}

async fn end_of(server: &Server, id: &str) -> time::OffsetDateTime {
    let answer = server.client.get(&format!("/sandboxes/{id}")).await;
    let text = answer.json["endAt"].as_str().unwrap().to_owned();
    time::OffsetDateTime::parse(&text, &time::format_description::well_known::Rfc3339).unwrap()
}

/// The reason in the last log line.
async fn reason(server: &Server, id: &str) -> String {
    let find = |answer: &support::Answer| {
        let lines = answer.json["logs"].as_array().cloned().unwrap_or_default();
        lines.iter().rev().find_map(|line| line["fields"]["reason"].as_str().map(str::to_owned))
    };
    for _ in 0..200 {
        let answer = server.client.get(&format!("/v2/sandboxes/{id}/logs")).await;
        if let Some(reason) = find(&answer) {
            return reason;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("no reason in the log");
}

#[tokio::test]
async fn a_sandbox_ends_when_its_time_is_over() {
    let server = Server::start().await;
    let started = Instant::now();
    let id = server.create(json!({ "timeout": 1 })).await;
    until_gone(&server, &id).await;
    let took = started.elapsed();
    assert!(took >= Duration::from_millis(990) && took < Duration::from_millis(1600), "{took:?}");
    // The API reports it first, then the node is called.
    until("the node has removed it", || async { server.node.count() == 0 }).await;
    assert_eq!(reason(&server, &id).await, "timeout");
}

#[tokio::test]
async fn the_end_can_be_moved_both_ways_but_connect_only_extends() {
    let server = Server::start_with(|config| config.control.max_lifetime = Duration::from_secs(3600)).await;
    let id = server.create(json!({ "timeout": 100 })).await;
    let first = end_of(&server, &id).await;
    let answer = server.client.post(&format!("/v2/sandboxes/{id}/connect"), json!({ "timeout": 10 })).await;
    assert_eq!((answer.status, end_of(&server, &id).await), (200, first));
    assert!(answer.json["envdAccessToken"].is_string());
    server.client.post(&format!("/v2/sandboxes/{id}/connect"), json!({ "timeout": 200 })).await;
    assert!((end_of(&server, &id).await - first).whole_seconds() >= 99);
    assert_eq!(server.client.post(&format!("/sandboxes/{id}/connect"), json!({})).await.status, 400);
    assert_eq!(server.client.post(&format!("/sandboxes/{id}/refreshes"), json!({ "duration": 10 })).await.status, 204);
    assert!((end_of(&server, &id).await - first).whole_seconds() >= 99);
    assert_eq!(server.client.post(&format!("/sandboxes/{id}/timeout"), json!({ "timeout": 50 })).await.status, 204);
    assert!(end_of(&server, &id).await < first);
    for bad in [json!({}), json!({ "timeout": -1 }), json!({ "timeout": 3601 }), json!({ "timeout": "5" })] {
        assert_eq!(server.client.post(&format!("/sandboxes/{id}/timeout"), bad).await.status, 400);
    }
    assert_eq!(server.client.post(&format!("/sandboxes/{id}/timeout"), json!({ "timeout": 0 })).await.status, 204);
    until_gone(&server, &id).await;
}

#[tokio::test]
async fn no_extension_reaches_beyond_the_longest_life() {
    let server = Server::start_with(|config| config.control.max_lifetime = Duration::from_secs(2)).await;
    let started = Instant::now();
    let id = server.create(json!({ "timeout": 1 })).await;
    while state(&server, &id).await.is_some() {
        let _ = server.client.post(&format!("/sandboxes/{id}/timeout"), json!({ "timeout": 2 })).await;
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert!(started.elapsed() < Duration::from_secs(4), "kept alive for ever");
    }
}

#[tokio::test]
async fn pause_twice_is_refused_and_connect_resumes() {
    let server = Server::start().await;
    let id = server.create(json!({})).await;
    assert_eq!(server.client.post(&format!("/sandboxes/{id}/pause"), json!({ "memory": 1 })).await.status, 400);
    assert_eq!(server.client.post(&format!("/sandboxes/{id}/pause"), json!({})).await.status, 204);
    assert_eq!(server.node.state_of(&id), Some(NodeState::Frozen));
    assert_eq!(server.client.post(&format!("/sandboxes/{id}/pause"), json!({})).await.status, 409);
    assert_eq!(server.client.post(&format!("/sandboxes/{id}/timeout"), json!({ "timeout": 9 })).await.status, 404);
    assert_eq!(server.client.put(&format!("/sandboxes/{id}/network"), json!({})).await.status, 409);
    let detail = server.client.get(&format!("/sandboxes/{id}")).await;
    assert_eq!((&detail.json["state"], &detail.json["pauseMode"]), (&json!("paused"), &json!("full")));
    let resumed = server.client.post(&format!("/v2/sandboxes/{id}/connect"), json!({})).await;
    assert_eq!((resumed.status, state(&server, &id).await.as_deref()), (201, Some("running")));
    assert_eq!(server.client.post(&format!("/sandboxes/{id}/resume"), json!({})).await.status, 409);
}

#[tokio::test]
async fn a_sandbox_that_kept_its_memory_can_be_started_from_its_files() {
    use std::sync::atomic::Ordering::Relaxed;
    let server = Server::start_with(|config| config.control.team_limits.concurrent = 1).await;
    let id = server.create(json!({})).await;
    let connect = |id: &str| {
        let (client, path) = (server.client.clone(), format!("/v2/sandboxes/{id}/connect"));
        async move { client.post(&path, json!({ "memory": false })).await.status }
    };
    let mode = || async { server.client.get(&format!("/sandboxes/{id}")).await.json["pauseMode"].clone() };
    assert_eq!(connect(&id).await, 200, "one that runs is left as it is");
    assert_eq!(server.client.post(&format!("/sandboxes/{id}/pause"), json!({})).await.status, 204);
    let other = server.create(json!({})).await;
    assert_eq!((connect(&id).await, server.node.state_of(&id)), (429, Some(NodeState::Frozen)), "memory is kept");
    assert_eq!(server.client.delete(&format!("/sandboxes/{other}")).await.status, 204);
    server.node.faults.pause_fails.store(true, Relaxed);
    assert_eq!((connect(&id).await, mode().await), (500, json!("full")));
    server.node.faults.pause_fails.store(false, Relaxed);
    server.node.faults.resume_fails.store(true, Relaxed);
    assert_eq!((connect(&id).await, mode().await), (500, json!("filesystem")));
    server.node.faults.resume_fails.store(false, Relaxed);
    let before = server.node.executions();
    assert_eq!((connect(&id).await, state(&server, &id).await.as_deref()), (201, Some("running")));
    assert!(server.node.executions() > before, "it is a new life");
    assert_eq!(server.client.inside(&id, 8080, "/").await.status, 200);
}

#[tokio::test]
async fn a_pause_without_memory_starts_anew_and_is_not_woken_by_traffic() {
    let server = Server::start().await;
    let id = server.create(json!({ "autoResume": { "enabled": true } })).await;
    assert_eq!(server.client.post(&format!("/sandboxes/{id}/pause"), json!({ "memory": false })).await.status, 204);
    assert_eq!(server.client.get(&format!("/sandboxes/{id}")).await.json["pauseMode"], "filesystem");
    let inside = server.client.inside(&id, 8080, "/").await;
    assert!(inside.status == 502 && inside.text.contains("was not found"), "{inside:?}");
    let before = server.node.executions();
    assert_eq!(server.client.post(&format!("/sandboxes/{id}/resume"), json!({})).await.status, 201);
    assert!(server.node.executions() > before);
    assert_eq!(server.client.inside(&id, 8080, "/").await.status, 200);
}

#[tokio::test]
async fn auto_pause_keeps_the_sandbox_and_traffic_wakes_it() {
    let server = Server::start().await;
    let body = json!({ "timeout": 1, "autoPause": true, "autoResume": { "enabled": true } });
    let id = server.create(body).await;
    until("it is paused", || async { state(&server, &id).await.as_deref() == Some("paused") }).await;
    let calls = (0..10).map(|_| server.client.inside(&id, 8080, "/"));
    let answers = futures::future::join_all(calls).await;
    assert!(answers.iter().all(|answer| answer.status == 200), "{answers:?}");
    assert_eq!(state(&server, &id).await.as_deref(), Some("running"));
    until("it is paused again", || async { state(&server, &id).await.as_deref() == Some("paused") }).await;
}

#[tokio::test]
async fn a_pause_that_fails_leaves_it_running_and_one_at_the_end_is_tried_again() {
    let server = Server::start().await;
    let id = server.create(json!({ "timeout": 1, "autoPause": true })).await;
    server.node.faults.pause_fails.store(true, Relaxed);
    assert_eq!(server.client.post(&format!("/sandboxes/{id}/pause"), json!({})).await.status, 500);
    assert_eq!(server.client.inside(&id, 8080, "/").await.status, 200);
    tokio::time::sleep(Duration::from_millis(1300)).await;
    server.node.faults.pause_fails.store(false, Relaxed);
    until("it is paused", || async { state(&server, &id).await.as_deref() == Some("paused") }).await;
}

/// Files are complete only if the guest has written them out, so a pause that keeps nothing else asks it first. The
/// service that answers may be anything.
#[tokio::test]
async fn a_guest_that_hangs_or_makes_no_sense_neither_holds_up_a_pause_nor_fakes_one() {
    let server = Server::start_with(|config| config.control.sample_every = Duration::from_secs(3600)).await;
    let id = server.create(json!({})).await;
    let path = format!("/sandboxes/{id}/pause");
    for imposter in [HANGING, ENDLESS_HEAD, ENDLESS_PROMISES, NO_HTTP] {
        server.node.printed.imposter.store(imposter, Relaxed);
        let refused = server.client.post(&path, json!({ "memory": false })).await;
        assert_eq!(refused.status, 503, "{imposter}: {refused:?}");
        assert_eq!(server.node.state_of(&id), Some(NodeState::Running), "{imposter}");
        until("nothing reads from it any more", || async { server.node.printed.connections.load(Relaxed) == 0 }).await;
    }
    server.node.printed.imposter.store(0, Relaxed);
    assert_eq!(server.client.post(&path, json!({ "memory": false })).await.status, 204);
}

#[tokio::test]
async fn a_resume_that_fails_leaves_it_paused() {
    let server = Server::start().await;
    let id = server.create(json!({})).await;
    server.client.post(&format!("/sandboxes/{id}/pause"), json!({})).await;
    server.node.faults.resume_fails.store(true, Relaxed);
    assert_eq!(server.client.post(&format!("/v2/sandboxes/{id}/connect"), json!({})).await.status, 500);
    assert_eq!(state(&server, &id).await.as_deref(), Some("paused"));
    server.node.faults.resume_fails.store(false, Relaxed);
    assert_eq!(server.client.post(&format!("/v2/sandboxes/{id}/connect"), json!({})).await.status, 201);
}

#[tokio::test]
async fn a_kill_that_fails_is_tried_until_it_succeeds() {
    let server = Server::start().await;
    let id = server.create(json!({})).await;
    server.node.faults.kill_fails.store(true, Relaxed);
    assert_eq!(server.client.delete(&format!("/sandboxes/{id}")).await.status, 500);
    assert_eq!(state(&server, &id).await, None, "it is on its way out");
    assert_eq!(server.client.inside(&id, 8080, "/").await.status, 502);
    server.node.faults.kill_fails.store(false, Relaxed);
    until("it is gone from the node", || async { server.node.count() == 0 }).await;
}

#[tokio::test]
async fn a_guest_that_dies_ends_the_sandbox_at_once_with_its_reason() {
    let server = Server::start().await;
    let id = server.create(json!({})).await;
    server.node.die(&id, EndReason::OutOfMemory);
    until_gone(&server, &id).await;
    assert_eq!(reason(&server, &id).await, "out_of_memory");
}

#[tokio::test]
async fn private_networks_that_the_operator_opened_can_be_allowed() {
    let server =
        Server::start_with(|config| config.control.sandbox_networks = vec!["10.1.0.0/16".parse().unwrap()]).await;
    let id = server.create(json!({ "network": { "allowOut": ["10.1.2.0/24", "0.0.0.0/0"] } })).await;
    assert_eq!(server.node.spec_of(&id).unwrap().network.allow_out.len(), 2);
    for (allow, status) in [("10.1.0.0/16", 204), ("10.0.0.0/8", 400), ("10.2.0.1", 400), ("0.0.0.0/0", 204)] {
        let answer = server.client.put(&format!("/sandboxes/{id}/network"), json!({ "allowOut": [allow] })).await;
        assert_eq!(answer.status, status, "{allow}: {}", answer.json);
    }
}

#[tokio::test]
async fn the_network_policy_is_replaced() {
    let server = Server::start().await;
    let id = server.create(json!({ "network": { "denyOut": ["10.0.0.0/8"] } })).await;
    let bad = server.client.put(&format!("/sandboxes/{id}/network"), json!({ "allowOut": ["a.example"] })).await;
    assert_eq!(bad.status, 501);
    let private = server.client.put(&format!("/sandboxes/{id}/network"), json!({ "allowOut": ["10.1.2.3"] })).await;
    assert_eq!(private.status, 400);
    assert!(private.json["message"].as_str().unwrap().contains("--sandbox-networks"), "{}", private.json);
    let body = json!({ "allowOut": ["8.8.8.8"], "allow_internet_access": false });
    assert_eq!(server.client.put(&format!("/sandboxes/{id}/network"), body).await.status, 204);
    let policy = server.node.spec_of(&id).unwrap().network;
    assert!(policy.deny_internet && policy.deny_out.is_empty() && policy.allow_out.len() == 1);
    let detail = server.client.get(&format!("/sandboxes/{id}")).await;
    assert_eq!(detail.json["network"], json!({ "allowOut": ["8.8.8.8"] }));
    assert_eq!(detail.json["allowInternetAccess"], json!(false));
}

#[tokio::test]
async fn sandboxes_survive_their_server_with_their_timers() {
    let mut server = Server::start().await;
    let running = server.create(json!({ "timeout": 2 })).await;
    let paused = server.create(json!({})).await;
    let gone = server.create(json!({})).await;
    server.client.post(&format!("/sandboxes/{paused}/pause"), json!({})).await;
    let token = server.client.get(&format!("/sandboxes/{running}")).await.json["envdAccessToken"].clone();
    server.crash().await;
    server.node.lose(&gone);
    let server = server.start_again().await;
    assert_eq!(state(&server, &running).await.as_deref(), Some("running"));
    assert_eq!(server.client.get(&format!("/sandboxes/{running}")).await.json["envdAccessToken"], token);
    assert_eq!(state(&server, &paused).await.as_deref(), Some("paused"));
    assert_eq!(state(&server, &gone).await, None);
    assert_eq!(reason(&server, &gone).await, "lost");
    assert_eq!(server.client.inside(&running, 8080, "/").await.status, 200);
    until_gone(&server, &running).await;
    assert_eq!(server.client.post(&format!("/v2/sandboxes/{paused}/connect"), json!({})).await.status, 201);
}

#[tokio::test]
async fn after_a_reboot_of_the_host_the_reason_is_known() {
    let mut server = Server::start().await;
    let running = server.create(json!({})).await;
    let frozen = server.create(json!({})).await;
    server.client.post(&format!("/sandboxes/{frozen}/pause"), json!({})).await;
    server.crash().await;
    server.node.die(&running, EndReason::HostRebooted);
    server.node.force_state(&frozen, NodeState::Stopped);
    let server = server.start_again().await;
    assert_eq!(reason(&server, &running).await, "host_rebooted");
    assert_eq!(server.client.get(&format!("/sandboxes/{frozen}")).await.json["pauseMode"], "filesystem");
    assert_eq!(server.client.post(&format!("/v2/sandboxes/{frozen}/connect"), json!({})).await.status, 201);
}

#[tokio::test]
async fn a_server_that_dies_while_creating_leaves_neither_sandbox_nor_row() {
    let mut server = Server::start().await;
    server.node.faults.create_takes.store(100, Relaxed);
    let client = server.client.clone();
    let asking = tokio::spawn(async move {
        client
            .call(Method::POST, "/v2/sandboxes", &[("idempotency-key", "k")], Some(json!({ "templateID": "base" })))
            .await
    });
    until("the node was asked", || async { server.node.creates.load(Relaxed) == 1 }).await;
    server.crash().await;
    asking.abort();
    until("the node has made it", || async { server.node.count() == 1 }).await;
    let server = server.start_again().await;
    until("it was removed", || async { server.node.count() == 0 }).await;
    assert_eq!(server.client.get("/v2/sandboxes").await.json, json!([]));
    server.node.faults.create_takes.store(0, Relaxed);
    let again = [("idempotency-key", "k")];
    let answer = server.client.call(Method::POST, "/v2/sandboxes", &again, Some(json!({ "templateID": "base" }))).await;
    assert_eq!(answer.status, 201, "the same request may be sent again");
}

#[tokio::test]
async fn interrupted_pauses_and_resumes_end_up_as_the_node_has_them() {
    let mut server = Server::start().await;
    let ids = [server.create(json!({})).await, server.create(json!({})).await, server.create(json!({})).await];
    server.client.post(&format!("/sandboxes/{}/pause", ids[2]), json!({})).await;
    server.stop().await;
    server.node.force_state(&ids[0], NodeState::Frozen);
    server.node.force_state(&ids[1], NodeState::Stopped);
    server.node.force_state(&ids[2], NodeState::Running);
    let server = server.start_again().await;
    let states = [state(&server, &ids[0]).await, state(&server, &ids[1]).await, state(&server, &ids[2]).await];
    assert_eq!(states.map(Option::unwrap), ["paused", "paused", "running"]);
    assert_eq!(server.client.get(&format!("/sandboxes/{}", ids[1])).await.json["pauseMode"], "filesystem");
}

#[tokio::test]
async fn events_logs_and_metrics_tell_the_story() {
    let server = Server::start().await;
    let id = server.create(json!({ "metadata": { "k": "v" } })).await;
    until("there are metrics", || async {
        let answer = server.client.get(&format!("/sandboxes/{id}/metrics")).await;
        answer.json.as_array().is_some_and(|samples| samples.len() > 2)
    })
    .await;
    let metrics = server.client.get(&format!("/sandboxes/{id}/metrics")).await;
    assert_eq!((&metrics.json[0]["memUsed"], &metrics.json[0]["cpuCount"]), (&json!(5 << 20), &json!(2)));
    assert_eq!(server.client.get(&format!("/sandboxes/{id}/metrics?start=0&end=1")).await.json, json!([]));
    assert_eq!(server.client.get(&format!("/sandboxes/{id}/metrics?start=5&end=1")).await.status, 400);
    let many = server.client.get(&format!("/sandboxes/metrics?sandbox_ids={id},iother")).await;
    assert_eq!(many.json["sandboxes"].as_object().unwrap().len(), 1);
    server.client.post(&format!("/sandboxes/{id}/pause"), json!({})).await;
    server.client.post(&format!("/v2/sandboxes/{id}/connect"), json!({})).await;
    server.client.delete(&format!("/sandboxes/{id}")).await;
    let kinds = || async {
        let answer = server.client.get(&format!("/events/sandboxes/{id}?orderAsc=true")).await;
        let events = answer.json.as_array().unwrap().clone();
        events
            .iter()
            .map(|event| event["type"].as_str().unwrap().rsplit('.').next().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    until("all events are there", || async { kinds().await.len() == 4 }).await;
    assert_eq!(kinds().await, ["created", "paused", "resumed", "killed"]);
    let one = server.client.get("/events/sandboxes?types=sandbox.lifecycle.killed&limit=1").await;
    assert_eq!(one.json[0]["eventData"]["sandbox_metadata"], json!({ "k": "v" }));
    let logs = server.client.get(&format!("/sandboxes/{id}/logs")).await;
    assert_eq!(logs.json["logs"].as_array().unwrap().len(), 4);
    assert_eq!(logs.json["logEntries"][0]["message"], "sandbox created");
    let prometheus = server.metrics().await;
    assert!(prometheus.contains("isopod_sandboxes_ended_total{reason=\"killed\"} 1"), "{prometheus}");
    assert!(prometheus.contains("isopod_create_seconds_count 1"));
}

#[tokio::test]
async fn keys_can_be_made_listed_renamed_and_revoked() {
    let server = Server::start().await;
    assert_eq!(server.client.post("/api-keys", json!({ "name": " " })).await.status, 400);
    let made = server.client.post("/api-keys", json!({ "name": "ci" })).await;
    let (id, key) = (made.json["id"].as_str().unwrap(), made.json["key"].as_str().unwrap());
    let theirs = support::Client::new(server.address, key);
    assert_eq!(theirs.get("/v2/sandboxes").await.status, 200);
    let list = server.client.get("/api-keys").await;
    assert_eq!(list.json.as_array().unwrap().len(), 2);
    assert!(!list.text.contains(key), "a key is shown once only");
    let renamed =
        server.client.call(Method::PATCH, &format!("/api-keys/{id}"), &[], Some(json!({ "name": "cd" }))).await;
    assert_eq!(renamed.status, 202);
    assert_eq!(server.other_team().await.delete(&format!("/api-keys/{id}")).await.status, 404);
    assert_eq!(server.client.delete(&format!("/api-keys/{id}")).await.status, 204);
    assert_eq!(theirs.get("/v2/sandboxes").await.status, 401);
    assert_eq!(server.client.get("/teams").await.json[0]["name"], "default");
}
