//! Creates, finds and ends sandboxes over the REST API.

use crate::support;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use http::Method;
use isopod_wire::node::{EndReason, NodeState};
use isopod_wire::{FeatureGrants, KernelFeatures};
use serde_json::{Value, json};

use support::Server;
use support::server::until;

#[tokio::test]
async fn requests_without_a_valid_key_are_refused() {
    let server = Server::start().await;
    let answer = server.client.raw(Method::GET, "/v2/sandboxes", &[], "".into()).await;
    assert_eq!((answer.status, &answer.json["code"]), (401, &json!(401)));
    let answer = server.client.raw(Method::GET, "/v2/sandboxes", &[("x-api-key", "e2b_wrong")], "".into()).await;
    assert_eq!(answer.status, 401);
    assert_eq!(server.client.get("/v2/sandboxes").await.status, 200);
    let health = server.client.raw(Method::GET, "/health", &[], "".into()).await;
    assert_eq!((health.status, health.text.as_str()), (200, r#"{"status":"ok"}"#));
}

#[tokio::test]
async fn kernel_features_are_for_teams_that_the_operator_lists() {
    let ask = |features: &str| json!({ "templateID": "base", "metadata": { "isopod.allow": features } });
    let plain = Server::start().await;
    let refused = plain.client.post("/v2/sandboxes", ask("userns")).await;
    assert_eq!(refused.status, 403);
    assert!(refused.json["message"].as_str().unwrap().contains("kernel feature userns"), "{}", refused.json);
    assert_eq!(plain.client.post("/v2/sandboxes", ask("everything")).await.status, 400);
    assert_eq!(plain.client.post("/v2/sandboxes", ask("")).await.status, 201);

    let other = Server::start_with(move |config| config.control.features = grants("somebody-else")).await;
    assert_eq!(other.client.post("/v2/sandboxes", ask("userns")).await.status, 403);
    let server = Server::start_with(move |config| config.control.features = grants("*")).await;
    assert_eq!(server.client.post("/v2/sandboxes", ask("userns,fuse")).await.status, 403);
    let id = server.create(ask("userns")).await;
    assert_eq!(server.node.spec_of(&id).unwrap().features, KernelFeatures { userns: true, fuse: false });
}

/// Neither its owner nor traffic resumes a sandbox with a feature that its team may no longer have.
#[tokio::test]
async fn a_grant_that_was_taken_back_is_not_there_after_a_resume() {
    let granted: Arc<Mutex<FeatureGrants>> = Arc::default();
    let reading = Arc::clone(&granted);
    let server = Server::start_with(move |config| config.control.features = reading.lock().unwrap().clone()).await;
    let ask = json!({
        "templateID": "base", "metadata": { "isopod.allow": "userns" }, "autoResume": { "enabled": true },
    });
    assert_eq!(server.client.post("/v2/sandboxes", ask.clone()).await.status, 403);
    let team = server.client.get("/teams").await.json[0]["teamID"].as_str().unwrap().to_owned();
    *granted.lock().unwrap() = grants(&team);
    let server = restarted(server).await;
    let id = server.create(ask.clone()).await;
    assert_eq!(server.node.spec_of(&id).unwrap().features, KernelFeatures { userns: true, fuse: false });
    let others = server.other_team().await;
    assert_eq!(others.post("/v2/sandboxes", ask).await.status, 403);
    assert_eq!(server.client.post(&format!("/sandboxes/{id}/pause"), json!({})).await.status, 204);

    *granted.lock().unwrap() = FeatureGrants::default();
    let server = restarted(server).await;
    let connect = format!("/v2/sandboxes/{id}/connect");
    for refused in [server.client.post(&connect, json!({})).await, server.client.inside(&id, 8080, "/").await] {
        assert_eq!(refused.status, 403, "{refused:?}");
        assert!(refused.json["message"].as_str().unwrap().contains("kernel feature userns"), "{refused:?}");
    }
    assert_eq!(server.client.get(&format!("/sandboxes/{id}")).await.json["state"], "paused");
    assert_eq!(server.node.state_of(&id), Some(NodeState::Frozen));

    *granted.lock().unwrap() = grants(&team);
    let server = restarted(server).await;
    assert_eq!(server.client.post(&connect, json!({})).await.status, 201);
    assert_eq!(server.client.inside(&id, 8080, "/").await.status, 200);
}

fn grants(team: &str) -> FeatureGrants {
    let teams = BTreeMap::from([(team.to_owned(), vec!["userns".to_owned()])]);
    FeatureGrants::parse(&teams).unwrap()
}

async fn restarted(mut server: Server) -> Server {
    server.stop().await;
    server.start_again().await
}

#[tokio::test]
async fn what_cannot_be_kept_is_refused() {
    let server = Server::start().await;
    let bad = [
        (json!({ "surprise": 1 }), 400),
        (json!({ "templateID": "base", "network": { "surprise": { "denyMore": true } } }), 501),
        (json!({ "timeout": 10 }), 400),
        (json!({ "templateID": "base", "timeout": -1 }), 400),
        (json!({ "templateID": "base", "timeout": 100_000_000 }), 400),
        (json!({ "templateID": "base", "metadata": { "a": 1 } }), 400),
        (json!({ "templateID": "base", "envVars": { "A=B": "c" } }), 400),
        (json!({ "templateID": "nope" }), 404),
        (json!({ "templateID": "base", "network": { "denyOut": ["0x7f.1"] } }), 400),
        (json!({ "templateID": "base", "network": { "denyOut": ["example.com"] } }), 400),
        (json!({ "templateID": "base", "network": { "allowOut": ["*.example.com"] } }), 501),
        (json!({ "templateID": "base", "network": { "allowOut": ["8.8.8.8", "10.0.0.5"] } }), 400),
        (json!({ "templateID": "base", "network": { "allowOut": ["100.64.0.0/10"] } }), 400),
        (json!({ "templateID": "base", "network": { "allowOut": ["172.20.0.0/16"] } }), 400),
        (json!({ "templateID": "base", "network": { "allowOut": ["192.168.1.0/24"] } }), 400),
        (json!({ "templateID": "base", "network": { "egressProxy": { "address": "x" } } }), 501),
        (json!({ "templateID": "base", "network": { "rules": { "a.b": [] } } }), 501),
        (json!({ "templateID": "base", "network": { "httpsPorts": [443] } }), 501),
        (json!({ "templateID": "base", "iam": {} }), 501),
        (json!({ "templateID": "base", "mcp": { "x": {} } }), 501),
        (json!({ "templateID": "base", "volumeMounts": [{ "name": "a", "path": "/a" }] }), 501),
        (json!({ "templateID": "base", "autoPauseMemory": false, "autoResume": { "enabled": true } }), 400),
        (json!([1, 2]), 400),
    ];
    for (body, status) in bad {
        let answer = server.client.post("/v2/sandboxes", body.clone()).await;
        assert_eq!(answer.status, status, "{body} {answer:?}");
        assert_eq!(answer.json["code"], status);
        assert!(answer.json["message"].is_string());
    }
    assert_eq!(server.node.count(), 0);
    let text = [("content-type", "text/plain"), ("x-api-key", &server.client.key)];
    assert_eq!(server.client.raw(Method::POST, "/v2/sandboxes", &text, "hello".into()).await.status, 415);
    let json = [("content-type", "application/json"), ("x-api-key", &server.client.key)];
    assert_eq!(server.client.raw(Method::POST, "/v2/sandboxes", &json, "{".into()).await.status, 400);
    let large = vec![b' '; 5 << 20];
    assert_eq!(server.client.raw(Method::POST, "/v2/sandboxes", &json, large.into()).await.status, 413);
    for (method, path) in [(Method::GET, "/nowhere"), (Method::PATCH, "/v2/sandboxes"), (Method::GET, "/secrets")] {
        let answer = server.client.call(method, path, &[], None).await;
        assert!([404, 405, 501].contains(&answer.status) && answer.json["message"].is_string(), "{answer:?}");
    }
}

#[tokio::test]
async fn a_sandbox_is_made_shown_and_killed() {
    let server = Server::start().await;
    let body = json!({
        "templateID": "base", "timeout": 60, "metadata": { "a": "b" }, "envVars": { "X": "1" },
        "allow_internet_access": false, "network": { "allowOut": ["1.1.1.1"], "denyOut": ["0.0.0.0/0"] },
        "autoPause": true, "autoResume": { "enabled": true },
    });
    let made = server.client.post("/v2/sandboxes", body).await;
    assert_eq!(made.status, 201, "{made:?}");
    let id = made.json["sandboxID"].as_str().unwrap();
    assert_eq!(made.json["envdVersion"], "0.6.13");
    assert_eq!(made.json["domain"], "isopod.localhost");
    assert!(made.json["trafficAccessToken"].is_string());
    let token = made.json["envdAccessToken"].as_str().unwrap();

    let spec = server.node.spec_of(id).unwrap();
    assert_eq!(spec.access_token.unwrap().0, token);
    assert_eq!(spec.env["X"], "1");
    assert!(spec.network.deny_internet && spec.network.allow_out.len() == 1);

    let detail = server.client.get(&format!("/sandboxes/{id}")).await;
    assert_eq!(detail.status, 200);
    assert_eq!(detail.json["state"], "running");
    assert_eq!(detail.json["envdAccessToken"], token);
    assert_eq!(detail.json["metadata"], json!({ "a": "b" }));
    assert_eq!(detail.json["network"]["allowOut"], json!(["1.1.1.1"]));
    assert_eq!(detail.json["lifecycle"], json!({ "autoResume": true, "onTimeout": "pause" }));
    for key in ["clientID", "startedAt", "endAt", "cpuCount", "memoryMB", "diskSizeMB", "templateID", "envdVersion"] {
        assert!(!detail.json[key].is_null(), "{key} is missing");
    }

    assert_eq!(server.client.delete(&format!("/sandboxes/{id}")).await.status, 204);
    assert_eq!(server.client.delete(&format!("/sandboxes/{id}")).await.status, 404);
    assert_eq!(server.client.get(&format!("/sandboxes/{id}")).await.status, 404);
    assert_eq!(server.node.count(), 0);
}

#[tokio::test]
async fn the_two_versions_have_their_own_defaults() {
    let server = Server::start().await;
    let seconds = |answer: &support::Answer| {
        let time = |key: &str| {
            let text = answer.json[key].as_str().unwrap();
            time::OffsetDateTime::parse(text, &time::format_description::well_known::Rfc3339).unwrap()
        };
        (time("endAt") - time("startedAt")).whole_seconds()
    };
    for (path, timeout, secure) in [("/sandboxes", 15, false), ("/v2/sandboxes", 300, true)] {
        let made = server.client.post(path, json!({ "templateID": "base" })).await;
        let id = made.json["sandboxID"].as_str().unwrap().to_owned();
        assert_eq!(made.json.get("envdAccessToken").is_some(), secure, "{path}");
        assert_eq!(seconds(&server.client.get(&format!("/sandboxes/{id}")).await), timeout, "{path}");
    }
    // Version 2 does not know the field, and its sandboxes are secured whatever it says.
    for (path, secure) in [("/sandboxes", true), ("/v2/sandboxes", true), ("/v2/sandboxes", false)] {
        let answer = server.client.post(path, json!({ "templateID": "base", "secure": secure })).await;
        assert!(answer.json["envdAccessToken"].is_string(), "{path} {secure}");
    }
}

#[tokio::test]
async fn another_teams_sandbox_is_as_good_as_not_there() {
    let server = Server::start().await;
    let id = server.create(json!({})).await;
    let other = server.other_team().await;
    let verbs = [
        (Method::GET, format!("/sandboxes/{id}"), None),
        (Method::DELETE, format!("/sandboxes/{id}"), None),
        (Method::POST, format!("/v2/sandboxes/{id}/connect"), Some(json!({}))),
        (Method::POST, format!("/sandboxes/{id}/connect"), Some(json!({ "timeout": 5 }))),
        (Method::POST, format!("/sandboxes/{id}/resume"), Some(json!({}))),
        (Method::POST, format!("/sandboxes/{id}/timeout"), Some(json!({ "timeout": 0 }))),
        (Method::POST, format!("/sandboxes/{id}/refreshes"), Some(json!({ "duration": 5 }))),
        (Method::POST, format!("/sandboxes/{id}/pause"), Some(json!({}))),
        (Method::PUT, format!("/sandboxes/{id}/network"), Some(json!({}))),
        (Method::GET, format!("/sandboxes/{id}/metrics"), None),
        (Method::GET, format!("/sandboxes/{id}/logs"), None),
        (Method::GET, format!("/v2/sandboxes/{id}/logs"), None),
        (Method::GET, format!("/events/sandboxes/{id}"), None),
    ];
    for (method, path, body) in verbs {
        let theirs = other.call(method.clone(), &path, &[], body.clone()).await;
        let nobodys = other.call(method.clone(), &path.replace(&id, "inobody"), &[], body).await;
        assert_eq!((theirs.status, nobodys.status), (404, 404), "{method} {path}");
        assert_eq!(theirs.text.replace(&id, "inobody"), nobodys.text, "{method} {path}");
    }
    assert_eq!(other.get("/v2/sandboxes").await.json, json!([]));
    assert_eq!(other.get(&format!("/sandboxes/metrics?sandbox_ids={id}")).await.json, json!({ "sandboxes": {} }));
    assert_eq!(server.node.state_of(&id), Some(NodeState::Running));
}

#[tokio::test]
async fn lists_are_filtered_and_paged() {
    let server = Server::start().await;
    for number in 0..5 {
        server.create(json!({ "metadata": { "a": "b c&d=e%", "n": number.to_string() } })).await;
    }
    let paused = server.create(json!({})).await;
    assert_eq!(server.client.post(&format!("/sandboxes/{paused}/pause"), json!({})).await.status, 204);

    let all = server.client.get("/v2/sandboxes").await;
    assert_eq!(all.json.as_array().unwrap().len(), 6);
    assert_eq!(all.headers["x-total-running"], "5");
    assert!(!all.headers.contains_key("x-next-token"));
    // As Python's urllib encodes {"a": "b c&d=e%", "n": "3"}.
    let filter = "metadata=a%3Db%252520c%252526d%25253De%252525%26n%3D3";
    assert_eq!(server.client.get(&format!("/v2/sandboxes?{filter}")).await.json.as_array().unwrap().len(), 1);
    assert_eq!(server.client.get("/v2/sandboxes?metadata=a%3Dother").await.json, json!([]));
    let only = server.client.get("/v2/sandboxes?state=paused").await;
    assert_eq!(only.json[0]["sandboxID"], paused.as_str());
    assert_eq!(server.client.get("/sandboxes").await.json.as_array().unwrap().len(), 5);

    // The bound is inclusive, so the newest one is listed.
    let since = all.json[0]["startedAt"].as_str().unwrap();
    assert!(
        !server.client.get(&format!("/v2/sandboxes?startedAfter={since}")).await.json.as_array().unwrap().is_empty()
    );

    for order in ["asc", "desc"] {
        let mut seen = Vec::new();
        let mut path = format!("/v2/sandboxes?limit=2&order={order}");
        loop {
            let page = server.client.get(&path).await;
            seen.extend(page.json.as_array().unwrap().iter().map(|one| one["startedAt"].to_string()));
            let Some(token) = page.headers.get("x-next-token") else { break };
            path = format!("/v2/sandboxes?limit=2&order={order}&nextToken={}", token.to_str().unwrap());
        }
        assert_eq!(seen.len(), 6);
        assert!(if order == "asc" { seen.is_sorted() } else { seen.iter().rev().is_sorted() });
    }
    for bad in ["limit=0", "limit=101", "limit=x", "nextToken=%21", "state=asleep", "order=up", "startedAfter=now"] {
        assert_eq!(server.client.get(&format!("/v2/sandboxes?{bad}")).await.status, 400, "{bad}");
    }
}

#[tokio::test]
async fn a_full_host_and_a_failing_one_are_told_apart_and_leave_nothing() {
    let server = Server::start().await;
    server.node.faults.full.store(true, std::sync::atomic::Ordering::Relaxed);
    let full = server.client.post("/v2/sandboxes", json!({ "templateID": "base" })).await;
    assert_eq!((full.status, full.json["error_code"].as_str()), (503, Some("sandbox_capacity_unavailable")));
    assert!(full.headers.contains_key("retry-after") && full.headers["should-retry"] == "true");
    server.node.faults.full.store(false, std::sync::atomic::Ordering::Relaxed);
    server.node.faults.create_fails.store(true, std::sync::atomic::Ordering::Relaxed);
    let failed = server.client.post("/v2/sandboxes", json!({ "templateID": "base" })).await;
    assert_eq!((failed.status, failed.json["error_code"].as_str()), (500, Some("sandbox_create_failed")));
    assert!(!failed.text.contains("injected"), "inner details leave the server");
    assert_eq!(server.client.get("/v2/sandboxes").await.json, json!([]));
}

#[tokio::test]
async fn limits_of_a_team_answer_429_with_a_time_to_wait() {
    let server = Server::start_with(|config| config.control.team_limits.concurrent = 2).await;
    let first = server.create(json!({})).await;
    server.create(json!({})).await;
    let third = server.client.post("/v2/sandboxes", json!({ "templateID": "base" })).await;
    assert_eq!((third.status, third.headers["retry-after"].to_str().unwrap()), (429, "1"));
    // A paused sandbox releases its slot, and needs one to resume.
    assert_eq!(server.client.post(&format!("/sandboxes/{first}/pause"), json!({})).await.status, 204);
    server.create(json!({})).await;
    assert_eq!(server.client.post(&format!("/v2/sandboxes/{first}/connect"), json!({})).await.status, 429);
}

#[tokio::test]
async fn a_slow_node_is_a_timeout_and_what_it_makes_late_is_removed() {
    let server =
        Server::start_with(|config| config.control.create_timeout = std::time::Duration::from_millis(50)).await;
    server.node.faults.create_takes.store(200, std::sync::atomic::Ordering::Relaxed);
    let slow = server.client.post("/v2/sandboxes", json!({ "templateID": "base" })).await;
    assert_eq!((slow.status, slow.json["error_code"].as_str()), (504, Some("sandbox_placement_timeout")));
    until("the late sandbox came and went", || async { server.node.executions() > 0 && server.node.count() == 0 })
        .await;
}

/// With the progress, and before the SDKs give up.
#[tokio::test]
async fn a_create_of_a_template_that_is_still_built_is_told_to_come_back() {
    let server = Server::start().await;
    server.node.faults.builds_too_long.store(true, std::sync::atomic::Ordering::Relaxed);
    let body = json!({ "templateID": "code-interpreter-v1" });
    let early = server.client.post("/v2/sandboxes", body.clone()).await;
    assert_eq!((early.status, early.json["error_code"].as_str()), (503, Some("template_not_ready")));
    assert_eq!(early.headers["retry-after"], "10");
    let message = early.json["message"].as_str().unwrap();
    assert!(message.ends_with("is being built: step 3 of 9, Installing pandas"), "{message}");
    assert_eq!(server.client.get("/v2/sandboxes").await.json, json!([]));
    server.node.faults.builds_too_long.store(false, std::sync::atomic::Ordering::Relaxed);
    assert_eq!(server.client.post("/v2/sandboxes", body).await.status, 201);
}

/// Also if the request could be repeated: nothing of it is recorded, and a repeated one doesn't wait.
#[tokio::test]
async fn a_create_with_a_key_is_told_to_come_back_while_its_template_is_built() {
    use std::sync::atomic::Ordering::Relaxed;
    let server = Server::start().await;
    let (client, faults) = (&server.client, &server.node.faults);
    let plain = json!({ "templateID": "code-interpreter-v1" });
    let of_session = json!({ "templateID": "code-interpreter-v1", "metadata": { "isopod.session": "s1" } });
    let of_service = json!({ "template": "code-interpreter-v1" });
    let script = json!({ "script": "1" });
    let (with_key, without) = ([("idempotency-key", "k1")], []);
    type Request<'a> = (&'a str, &'a [(&'a str, &'a str)], &'a Value);
    let requests: [Request<'_>; 5] = [
        ("/v2/sandboxes", &with_key, &plain),
        ("/v2/sandboxes", &without, &of_session),
        ("/api/v1/sandboxes", &with_key, &of_service),
        ("/api/v1/sandboxes", &without, &of_service),
        ("/sandbox/run", &without, &script),
    ];
    faults.builds_too_long.store(true, Relaxed);
    for (path, headers, body) in requests {
        let early = client.call(Method::POST, path, headers, Some(body.clone())).await;
        assert_eq!((early.status, early.headers["retry-after"].to_str().unwrap()), (503, "10"), "{path} {early:?}");
        let message = early.json["message"].as_str().unwrap();
        assert!(message.ends_with("is being built: step 3 of 9, Installing pandas"), "{path} {message}");
    }
    assert_eq!((server.node.creates.load(Relaxed), faults.waits.load(Relaxed)), (0, 5), "each waits once");
    assert_eq!(client.get("/v2/sandboxes").await.json, json!([]));
    assert_eq!(client.get("/api/v1/sandboxes?include_ended=true").await.json["sandboxes"], json!([]));

    faults.builds_too_long.store(false, Relaxed);
    let mut made = Vec::new();
    for (path, headers, body) in &requests[..3] {
        let answer = client.call(Method::POST, path, headers, Some((*body).clone())).await;
        assert_eq!(answer.status, 201, "{path} {answer:?}");
        made.push(answer.json);
    }
    // The template is built again: a repeated request finds its sandbox at once.
    faults.builds_too_long.store(true, Relaxed);
    for ((path, headers, body), made) in requests[..3].iter().zip(&made) {
        let answer = client.call(Method::POST, path, headers, Some((*body).clone())).await;
        let id = if path.starts_with("/api") { "id" } else { "sandboxID" };
        assert_eq!((answer.status, &answer.json[id]), (201, &made[id]), "{path} {answer:?}");
    }
    assert_eq!(server.node.count(), 3);
}

/// Neither then nor when the template is there.
#[tokio::test]
async fn a_client_that_hangs_up_while_its_template_is_built_gets_no_sandbox() {
    use std::sync::atomic::Ordering::Relaxed;
    let server = Server::start().await;
    let faults = &server.node.faults;
    faults.builds.store(true, Relaxed);
    let client = server.client.clone();
    let asking = tokio::spawn(async move {
        let headers = [("x-api-key", client.key.as_str()), ("content-type", "application/json")];
        let body = json!({ "templateID": "code-interpreter-v1" }).to_string();
        let _ = client.open(Method::POST, "/v2/sandboxes", &headers, body.into()).await;
    });
    until("it waits", || async { faults.waits.load(Relaxed) == 1 }).await;
    asking.abort();
    until("the server knows that it is gone", || async {
        let audit = server.client.get("/api/v1/audit").await.json;
        audit["lines"].as_array().unwrap().iter().any(|line| line["code"] == "client_gone")
    })
    .await;
    faults.builds.store(false, Relaxed);
    let id = server.create(json!({ "templateID": "code-interpreter-v1" })).await;
    assert_eq!((server.node.creates.load(Relaxed), server.node.count()), (1, 1));
    assert_eq!(server.client.get("/v2/sandboxes").await.json[0]["sandboxID"], id.as_str());
}

/// Otherwise any number of a team's requests could wait. A client that hangs up gives the place back.
#[tokio::test]
async fn a_create_that_waits_for_its_template_counts_among_the_teams_sandboxes() {
    use std::sync::atomic::Ordering::Relaxed;
    let server = Server::start_with(|config| config.control.team_limits.concurrent = 1).await;
    let faults = &server.node.faults;
    faults.builds.store(true, Relaxed);
    let post = || {
        let client = server.client.clone();
        async move { client.post("/v2/sandboxes", json!({ "templateID": "code-interpreter-v1" })).await }
    };
    let waiting = tokio::spawn(post());
    until("it waits", || async { faults.waits.load(Relaxed) == 1 }).await;
    let body = json!({ "templateID": "code-interpreter-v1" });
    let with_key = server.client.call(Method::POST, "/v2/sandboxes", &[("idempotency-key", "k1")], Some(body)).await;
    for refused in [post().await, with_key] {
        assert_eq!((refused.status, faults.waits.load(Relaxed)), (429, 1), "{refused:?}");
    }
    faults.builds.store(false, Relaxed);
    let made = waiting.await.unwrap();
    assert_eq!((made.status, post().await.status), (201, 429), "{made:?}");

    let id = made.json["sandboxID"].as_str().unwrap();
    assert_eq!(server.client.post(&format!("/sandboxes/{id}/pause"), json!({})).await.status, 204);
    faults.builds.store(true, Relaxed);
    let waiting = tokio::spawn(post());
    until("another one waits", || async { faults.waits.load(Relaxed) == 2 }).await;
    waiting.abort();
    until("the server knows that it is gone", || async {
        let audit = server.client.get("/api/v1/audit").await.json;
        audit["lines"].as_array().unwrap().iter().any(|line| line["code"] == "client_gone")
    })
    .await;
    faults.builds.store(false, Relaxed);
    until("its place is free", || async { post().await.status == 201 }).await;
    assert_eq!((post().await.status, server.node.creates.load(Relaxed)), (429, 2));
}

#[tokio::test]
async fn a_create_that_is_sent_again_makes_one_sandbox() {
    let server = Server::start().await;
    server.node.faults.create_takes.store(50, std::sync::atomic::Ordering::Relaxed);
    let send = |key: &'static str, template: &'static str| {
        let body = json!({ "templateID": template });
        let client = server.client.clone();
        async move { client.call(Method::POST, "/v2/sandboxes", &[("idempotency-key", key)], Some(body)).await }
    };
    let (one, two) = tokio::join!(send("k1", "base"), send("k1", "base"));
    let mut statuses = [one.status, two.status];
    statuses.sort_unstable();
    assert_eq!(statuses, [201, 409], "{one:?} {two:?}");
    let under_way = if one.status == 409 { &one } else { &two };
    assert_eq!(under_way.json["error_code"], "idempotency_in_progress");
    let made = if one.status == 201 { &one } else { &two };
    assert_eq!(send("k1", "base").await.json, made.json);
    let other = send("k1", "code-interpreter-v1").await;
    assert_eq!((other.status, other.json["error_code"].as_str()), (409, Some("idempotency_request_mismatch")));
    assert_eq!(send("UPPER", "base").await.status, 400);
    // A failure releases the key.
    assert_eq!(send("k2", "nope").await.status, 404);
    assert_eq!(send("k2", "base").await.status, 201);
    assert_eq!(server.node.count(), 2);
}

#[tokio::test]
async fn racing_callers_of_one_session_get_one_sandbox() {
    let server = Server::start().await;
    server.node.faults.create_takes.store(20, std::sync::atomic::Ordering::Relaxed);
    let body = json!({ "templateID": "base", "metadata": { "isopod.session": "run-1" } });
    let calls = (0..20).map(|_| server.client.post("/v2/sandboxes", body.clone()));
    let answers = futures::future::join_all(calls).await;
    let ids: std::collections::BTreeSet<_> =
        answers.iter().map(|answer| answer.json["sandboxID"].to_string()).collect();
    assert!(answers.iter().all(|answer| answer.status == 201), "{answers:?}");
    assert_eq!((ids.len(), server.node.count()), (1, 1));

    let id = answers[0].json["sandboxID"].as_str().unwrap();
    let differs = json!({ "templateID": "code-interpreter-v1", "metadata": { "isopod.session": "run-1" } });
    assert_eq!(server.client.post("/v2/sandboxes", differs).await.status, 409);
    assert_eq!(server.client.post(&format!("/sandboxes/{id}/pause"), json!({})).await.status, 204);
    assert_eq!(server.client.post("/v2/sandboxes", body.clone()).await.json["sandboxID"], id);
    assert_eq!(server.node.state_of(id), Some(NodeState::Running));
    assert_ne!(server.other_team().await.post("/v2/sandboxes", body.clone()).await.json["sandboxID"], id);
    server.node.die(id, EndReason::GuestDied);
    until("the ended sandbox is gone", || async { server.client.get(&format!("/sandboxes/{id}")).await.status == 404 })
        .await;
    assert_ne!(server.client.post("/v2/sandboxes", body).await.json["sandboxID"], id);
}

#[tokio::test]
async fn templates_tell_their_age_and_use() {
    let server = Server::start().await;
    let base = || async {
        let all = server.client.get("/templates").await.json;
        all.as_array().unwrap().iter().find(|one| one["templateID"] == "base").unwrap().clone()
    };
    let unused = base().await;
    assert_eq!((&unused["spawnCount"], &unused["lastSpawnedAt"]), (&json!(0), &json!(null)));
    assert_eq!(unused["createdAt"], "2023-11-14T22:13:20.000Z");
    let id = server.create(json!({})).await;
    server.create(json!({})).await;
    server.node.faults.create_fails.store(true, std::sync::atomic::Ordering::Relaxed);
    server.client.post("/v2/sandboxes", json!({ "templateID": "base" })).await;
    server.client.post(&format!("/sandboxes/{id}/pause"), json!({})).await;
    server.client.post(&format!("/v2/sandboxes/{id}/connect"), json!({})).await;
    server.client.delete(&format!("/sandboxes/{id}")).await;
    let used = base().await;
    assert_eq!(used["spawnCount"], 2, "what was made counts, whatever became of it");
    let detail = server.client.get("/templates/base").await.json;
    assert_eq!((&detail["spawnCount"], &detail["lastSpawnedAt"]), (&json!(2), &used["lastSpawnedAt"]));
    assert!(used["lastSpawnedAt"].as_str().unwrap() > "2026");
}
