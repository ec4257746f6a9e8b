//! Cleanup at the end of a run: every sandbox that the run has, wherever it is known, and every agent service that it
//! called.

use crate::support;

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use serde_json::{Value, json};

use support::Server;
use support::outside::serve_http;
use support::redis::RedisServer;
use support::runs::{execute, rechecks_often, sandbox_of};
use support::server::until;

/// The same program has never called `execute`, so only Redis knows which sandbox the run has.
#[tokio::test]
async fn cleanup_removes_a_sandbox_that_other_code_noted_in_redis() {
    let redis = RedisServer::start();
    let url = redis.url();
    let mut server = Server::start_with(move |config| {
        rechecks_often(config);
        config.agents.sessions.redis_url = Some(url.clone());
    })
    .await;
    let other = server.other_team().await;
    let note = |run: &str, sandbox: &str| redis.ask(&["SETEX", &format!("raro:e2b_session:{run}"), "3600", sandbox]);
    let noted = |run: &str| redis.ask(&["EXISTS", &format!("raro:e2b_session:{run}")]) == "1";

    let made = server.create(json!({ "timeout": 600 })).await;
    note("r", &made);
    let cleaned = server.client.delete("/runtime/r/cleanup").await;
    let expected = json!({ "status": "cleaned", "run_id": "r", "killed": true, "sandbox_ids": [made] });
    assert_eq!((cleaned.status, cleaned.json), (200, expected));
    assert_eq!((server.node.count(), noted("r")), (0, false));
    assert_eq!(server.client.delete("/runtime/r/cleanup").await.json["sandbox_ids"], json!([]));

    // The run has one of its own, and another program noted a second.
    let own = sandbox_of(&execute(&server, "two", "x").await);
    let second = server.create(json!({ "timeout": 600 })).await;
    note("two", &second);
    let cleaned = server.client.delete("/runtime/two/cleanup").await;
    assert_eq!(cleaned.json["sandbox_ids"], json!([own, second]));
    assert_eq!((server.node.count(), noted("two")), (0, false));

    // A note about nothing goes. One about another team's sandbox changes neither the sandbox nor the note.
    note("stale", "igone");
    assert_eq!(server.client.delete("/runtime/stale/cleanup").await.json["killed"], false);
    assert!(!noted("stale"));
    let theirs = other.post("/v2/sandboxes", json!({ "templateID": "base" })).await.json["sandboxID"].clone();
    note("theirs", theirs.as_str().unwrap());
    assert_eq!(server.client.delete("/runtime/theirs/cleanup").await.json["killed"], false);
    assert_eq!((server.node.count(), noted("theirs")), (1, true));
    assert_eq!(other.delete(&format!("/sandboxes/{}", theirs.as_str().unwrap())).await.status, 204);

    // A removal that fails is tried again, also by the next server.
    note("late", &server.create(json!({ "timeout": 600 })).await);
    server.node.faults.kill_fails.store(true, Ordering::Relaxed);
    assert_eq!(server.client.delete("/runtime/late/cleanup").await.status, 500);
    assert!(noted("late"), "the only handle is kept");
    server.crash().await;
    let server = server.start_again().await;
    server.node.faults.kill_fails.store(false, Ordering::Relaxed);
    until("it is gone", || async { server.node.count() == 0 && !noted("late") }).await;
}

const UNREACHABLE: &str = "Redis is unreachable; the cleanup will be tried again";

/// Only Redis knows which sandbox the run has, and it doesn't answer.
#[tokio::test]
async fn a_cleanup_that_redis_could_not_be_asked_about_is_finished_when_it_is_back() {
    let mut redis = RedisServer::start();
    let url = redis.url();
    let server = Server::start_with(move |config| {
        rechecks_often(config);
        config.agents.sessions.redis_url = Some(url.clone());
    })
    .await;
    let made = server.create(json!({ "timeout": 600 })).await;
    redis.ask(&["SETEX", "raro:e2b_session:r", "3600", &made]);
    stop_saved(&mut redis);
    let refused = server.client.delete("/runtime/r/cleanup").await;
    assert_eq!((refused.status, &refused.json["error"]), (503, &json!(UNREACHABLE)), "{refused:?}");
    assert!(refused.headers.contains_key("retry-after"), "{refused:?}");
    assert_eq!(server.node.count(), 1);
    redis.start_again();
    until("sandbox and key are gone", || async {
        server.node.count() == 0 && redis.ask(&["EXISTS", "raro:e2b_session:r"]) == "0"
    })
    .await;
    let cleaned = server.client.delete("/runtime/r/cleanup").await;
    assert_eq!((cleaned.status, &cleaned.json["sandbox_ids"]), (200, &json!([])), "{cleaned:?}");
}

/// Runs whose sandbox the server knows end without Redis. For the others, the next server remembers the cleanup.
#[tokio::test]
async fn only_what_redis_may_know_waits_for_it_and_for_the_next_server() {
    let mut redis = RedisServer::start();
    let url = redis.url();
    let mut server = Server::start_with(move |config| {
        config.agents.runs.allow_internal_agents = true;
        config.agents.sessions.redis_url = Some(url.clone());
    })
    .await;
    let made = server.create(json!({ "timeout": 600 })).await;
    redis.ask(&["SETEX", "raro:e2b_session:r", "3600", &made]);
    let own = sandbox_of(&execute(&server, "own", "x").await);
    stop_saved(&mut redis);

    assert_eq!(server.client.delete("/runtime/r/cleanup").await.status, 503);
    assert_eq!(server.client.delete("/cleanup/r").await.status, 503, "it is asked for again");
    let refused = execute(&server, "r", "x").await;
    assert_eq!(
        (refused.status, &refused.json["error"]),
        (503, &json!(UNREACHABLE)),
        "the cleanup is first: {refused:?}"
    );
    let new = sandbox_of(&execute(&server, "new", "x").await);
    for (run, sandbox) in [("own", own), ("new", new)] {
        let cleaned = server.client.delete(&format!("/runtime/{run}/cleanup")).await;
        assert_eq!((cleaned.status, &cleaned.json["sandbox_ids"]), (200, &json!([sandbox])), "{cleaned:?}");
    }
    // The agents of a workflow may have noted a sandbox, too.
    let service = Arc::new(Service { confirms: AtomicBool::new(true), ..Service::default() });
    let run = start(&server, json!({ "nodes": [{ "id": "a", "agent": service.start().await }] })).await;
    until("its cleanup waits for Redis", || async {
        let open = server.store().open_sessions().await.unwrap();
        open.iter().any(|row| row.owner.id() == run && row.is_ending)
    })
    .await;
    assert_eq!(state(&server, &run).await["cleaned_up"], false);
    assert_eq!(server.node.count(), 1);

    server.crash().await;
    redis.start_again();
    let server = server.start_again().await;
    until("sandbox and key are gone", || async {
        server.node.count() == 0 && redis.ask(&["EXISTS", "raro:e2b_session:r"]) == "0"
    })
    .await;
    until("the workflow is clean", || async { state(&server, &run).await["cleaned_up"] == true }).await;
}

/// Stops Redis. The next one has what this one had.
fn stop_saved(redis: &mut RedisServer) {
    assert_eq!(redis.ask(&["SAVE"]), "OK");
    redis.stop();
}

/// A server can't clean up what another server holds, and says so.
#[tokio::test]
async fn cleanup_of_a_run_on_another_server_is_refused() {
    let redis = RedisServer::start();
    let (one, two) = (redis.url(), redis.url());
    let first = Server::start_with(move |config| config.agents.sessions.redis_url = Some(one.clone())).await;
    let second = Server::start_with(move |config| config.agents.sessions.redis_url = Some(two.clone())).await;
    let sandbox = sandbox_of(&execute(&first, "r", "x").await);
    let refused = second.client.delete("/runtime/r/cleanup").await;
    assert_eq!(refused.status, 409, "{refused:?}");
    assert_eq!(redis.ask(&["GET", "raro:e2b_session:r"]), sandbox);
    assert_eq!(first.client.delete("/runtime/r/cleanup").await.json["sandbox_ids"], json!([sandbox]));
    assert_eq!(second.client.delete("/runtime/r/cleanup").await.status, 200);
}

/// An agent service on its own port. It confirms cleanups only if it is told to.
#[derive(Default)]
struct Service {
    invoked: AtomicU32,
    cleanups: Mutex<Vec<String>>,
    confirms: AtomicBool,
}

impl Service {
    async fn start(self: &Arc<Self>) -> String {
        let service = Arc::clone(self);
        let answer = hyper::service::service_fn(move |request| {
            let answer = service.answer(&request);
            async move { Ok::<_, hyper::Error>(answer) }
        });
        format!("http://{}/agents", serve_http(answer).await)
    }

    fn answer(&self, request: &Request<Incoming>) -> Response<Full<Bytes>> {
        let mut status = 200;
        if request.method() == Method::DELETE {
            self.cleanups.lock().unwrap().push(request.uri().path().to_owned());
            status = if self.confirms.load(Ordering::Relaxed) { 200 } else { 500 };
        } else {
            self.invoked.fetch_add(1, Ordering::Relaxed);
        }
        let body = json!({ "success": true, "output": "well", "tokens_used": 1 }).to_string();
        Response::builder().status(status).body(Full::new(Bytes::from(body))).unwrap()
    }

    fn cleanups(&self) -> usize {
        self.cleanups.lock().unwrap().len()
    }
}

async fn state(server: &Server, run: &str) -> Value {
    server.client.get(&format!("/runtime/state?run_id={run}")).await.json
}

async fn start(server: &Server, flow: Value) -> String {
    server.client.post("/runtime/start", flow).await.json["run_id"].as_str().unwrap().to_owned()
}

/// A service that a node names by its URL answers only after the server has been killed and started again.
#[tokio::test]
async fn the_service_of_a_node_is_asked_to_clean_up_until_it_confirms_also_after_a_crash() {
    let mut server = Server::start_with(|config| config.agents.runs.allow_internal_agents = true).await;
    let service = Arc::new(Service::default());
    let url = service.start().await;
    let run = start(&server, json!({ "nodes": [{ "id": "a", "agent": url }] })).await;
    until("it was asked", || async { service.cleanups() > 0 }).await;
    let before = state(&server, &run).await;
    assert_eq!((&before["status"], &before["cleaned_up"]), (&json!("completed"), &json!(false)), "{before}");
    assert_eq!(before["agent_services"][0]["url"], json!(url));
    server.crash().await;
    let server = server.start_again().await;
    service.confirms.store(true, Ordering::Relaxed);
    until("it is clean", || async { state(&server, &run).await["cleaned_up"] == true }).await;
    let asked = service.cleanups();
    assert!(service.cleanups.lock().unwrap().iter().all(|path| *path == format!("/agents/runtime/{run}/cleanup")));
    assert_eq!(service.invoked.load(Ordering::Relaxed), 1);
    // Another run is cleaned up after this one, which is not asked for again.
    let next = start(&server, json!({ "nodes": [{ "id": "a", "agent": url }] })).await;
    until("it is clean", || async { state(&server, &next).await["cleaned_up"] == true }).await;
    assert_eq!(service.cleanups(), asked + 1);
}

#[tokio::test]
async fn a_service_that_never_confirms_is_recorded_as_a_failed_cleanup() {
    let server = Server::start_with(|config| {
        config.agents.runs.allow_internal_agents = true;
        config.agents.runs.cleanup_deadline = Duration::from_millis(1);
    })
    .await;
    let service = Arc::new(Service::default());
    let url = service.start().await;
    let run = start(&server, json!({ "nodes": [{ "id": "a", "agent": url }, { "id": "b", "code": "x" }] })).await;
    until("it is given up", || async { state(&server, &run).await["cleanup_failed"] == true }).await;
    until("the sandbox is gone", || async { server.node.count() == 0 }).await;
    let shown = state(&server, &run).await;
    assert_eq!(shown["cleaned_up"], false, "{shown}");
    let told = &shown["agent_services"][0];
    assert_eq!((&told["url"], &told["cleanup"]), (&json!(url), &json!("cleanup_failed")), "{shown}");
    assert!(told["error"].as_str().unwrap().contains("500"), "{shown}");
    let asked = service.cleanups();
    assert!(asked >= 2, "it is tried again before it is given up");
    // Nothing asks it again.
    let confirmed = Arc::new(Service { confirms: AtomicBool::new(true), ..Service::default() });
    let other = start(&server, json!({ "nodes": [{ "id": "a", "agent": confirmed.start().await }] })).await;
    until("a later run is clean", || async { state(&server, &other).await["cleaned_up"] == true }).await;
    assert_eq!(service.cleanups(), asked);
}

/// The server refuses to call it, so there is nothing to clean up.
#[tokio::test]
async fn a_service_that_may_not_be_called_is_not_waited_for() {
    let server = Server::start().await;
    let service = Arc::new(Service::default());
    let run = start(&server, json!({ "nodes": [{ "id": "a", "agent": service.start().await }] })).await;
    until("it is clean", || async { state(&server, &run).await["cleaned_up"] == true }).await;
    assert_eq!(state(&server, &run).await["status"], "failed");
    assert_eq!((service.cleanups(), service.invoked.load(Ordering::Relaxed)), (0, 0));
}
