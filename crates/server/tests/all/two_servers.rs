//! Several servers on one PostgreSQL: each has its own sandboxes, nothing is done twice, and a database outage loses
//! neither a record nor a sandbox.

use crate::support;

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, Response};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use isopod_server::ServerConfig;
use isopod_store::Scope;
use serde_json::{Value, json};

use support::Server;
use support::outside::serve_http;
use support::postgres::{Postgres, database_for};
use support::redis::RedisServer;
use support::runs::{execute, sandbox_of};
use support::server::until;

/// Two servers that start at the same time on an empty database.
async fn two(change: impl Fn(&mut ServerConfig) + Send + Sync + Copy + 'static) -> (Server, Server, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let url = database_for(dir.path()).await;
    let (alpha, beta) =
        tokio::join!(Server::start_on((url.clone(), "alpha"), change), Server::start_on((url, "beta"), change));
    (alpha, beta, dir)
}

#[tokio::test]
async fn a_snapshot_is_on_the_server_that_took_it() {
    let (alpha, beta, _dir) = two(|config| config.control.recheck_every = Duration::from_millis(50)).await;
    let id = alpha.create(json!({})).await;
    let taken = alpha.client.post(&format!("/sandboxes/{id}/snapshots"), json!({ "name": "snap" })).await;
    assert_eq!(taken.status, 201, "{taken:?}");
    let refused = [
        beta.client.post(&format!("/sandboxes/{id}/snapshots"), json!({})).await,
        beta.client.post(&format!("/sandboxes/{id}/fork"), json!({})).await,
        beta.client.post("/v2/sandboxes", json!({ "templateID": "snap" })).await,
    ];
    for answer in refused {
        assert_eq!((answer.status, &answer.json["details"]["server"]), (421, &json!("alpha")), "{answer:?}");
    }
    assert_eq!(beta.client.get("/snapshots").await.json[0]["snapshotID"], "snap:default", "all of them list it");
    let mine = beta.create(json!({})).await;
    let again = beta.client.post(&format!("/sandboxes/{mine}/snapshots"), json!({ "name": "snap" })).await;
    assert_eq!(again.status, 201, "{again:?}");
    assert_eq!(beta.client.post("/v2/sandboxes", json!({ "templateID": "snap" })).await.status, 201);
    assert_eq!(beta.client.delete("/templates/snap").await.status, 204);
    assert!(beta.node.kept_snapshots().is_empty());
    until("the other server removes its own", || async { alpha.node.kept_snapshots().is_empty() }).await;
}

#[tokio::test]
async fn a_sandbox_of_another_server_is_refused_by_that_servers_name() {
    let (alpha, beta, _dir) = two(|_| {}).await;
    let id = alpha.create(json!({ "metadata": { "isopod.session": "s" } })).await;
    let refused = [
        beta.client.get(&format!("/sandboxes/{id}")).await,
        beta.client.post(&format!("/sandboxes/{id}/pause"), json!({})).await,
        beta.client.delete(&format!("/sandboxes/{id}")).await,
        // Its session cannot be taken twice either.
        beta.client.post("/v2/sandboxes", json!({ "templateID": "base", "metadata": { "isopod.session": "s" } })).await,
    ];
    for answer in refused {
        assert_eq!((answer.status, &answer.json["error_code"]), (421, &json!("on_another_server")), "{answer:?}");
        assert_eq!(answer.json["details"]["server"], "alpha");
    }
    let inside = beta.client.inside(&id, 8080, "/").await;
    assert_eq!(inside.status, 421);
    assert!(inside.text.contains("alpha"), "{inside:?}");
    // Only the owner learns that it exists.
    assert_eq!(beta.other_team().await.get(&format!("/sandboxes/{id}")).await.status, 404);
    let made = alpha.client.post("/api/v1/sandboxes", json!({})).await;
    let of_service = format!("/api/v1/sandboxes/{}", made.json["id"].as_str().unwrap());
    let refused = beta.client.get(&of_service).await;
    assert_eq!((refused.status, &refused.json["details"]["server"]), (421, &json!("alpha")), "{refused:?}");
    assert_eq!(alpha.client.get(&of_service).await.status, 200);
    assert_eq!(alpha.client.inside(&id, 8080, "/").await.status, 200);
}

/// Other code notes in Redis which sandbox a run has, not which server has the sandbox.
#[tokio::test]
async fn a_noted_sandbox_of_another_server_is_neither_replaced_nor_called_cleaned() {
    let redis = RedisServer::start();
    let url: &'static str = redis.url().leak();
    let (alpha, beta, _dir) = two(move |config| config.agents.sessions.redis_url = Some(url.to_owned())).await;
    let made = alpha.create(json!({ "timeout": 600 })).await;
    redis.ask(&["SETEX", "raro:e2b_session:r", "3600", &made]);
    for refused in [execute(&beta, "r", "x").await, beta.client.delete("/runtime/r/cleanup").await] {
        assert_eq!((refused.status, &refused.json["details"]["server"]), (421, &json!("alpha")), "{refused:?}");
    }
    assert_eq!(redis.ask(&["GET", "raro:e2b_session:r"]), made);
    assert_eq!((alpha.node.count(), beta.node.count()), (1, 0));
    // The server that has it goes on with it and ends it.
    assert_eq!(sandbox_of(&execute(&alpha, "r", "x").await), made);
    assert_eq!(alpha.client.delete("/runtime/r/cleanup").await.json["sandbox_ids"], json!([made]));
    assert_eq!(beta.client.delete("/runtime/r/cleanup").await.json["killed"], false);
    // A run with a sandbox of its own loses that, and its cleanup is finished once the other one is gone.
    let own = sandbox_of(&execute(&beta, "two", "x").await);
    let second = alpha.create(json!({ "timeout": 600 })).await;
    redis.ask(&["DEL", "isopod:session_server:run/two"]);
    redis.ask(&["SETEX", "raro:e2b_session:two", "3600", &second]);
    let refused = beta.client.delete("/runtime/two/cleanup").await;
    assert_eq!((refused.status, &refused.json["details"]["server"]), (421, &json!("alpha")), "{refused:?}");
    assert_eq!((alpha.node.count(), beta.node.count()), (1, 0), "{own} is gone");
    assert_eq!(alpha.client.delete(&format!("/sandboxes/{second}")).await.status, 204);
    assert_eq!(beta.client.delete("/runtime/two/cleanup").await.status, 200);
    assert_eq!(redis.ask(&["EXISTS", "raro:e2b_session:two"]), "0");
}

/// What the server answers to those who ask for a sandbox of another one, by its interfaces.
async fn refusals(server: &Server, sandbox: &str, of_service: &str) -> Vec<support::Answer> {
    let session = json!({ "templateID": "base", "metadata": { "isopod.session": "s" } });
    vec![
        server.client.get(&format!("/sandboxes/{sandbox}")).await,
        server.client.delete(&format!("/sandboxes/{sandbox}")).await,
        server.client.post("/v2/sandboxes", session).await,
        server.client.get(&format!("/api/v1/sandboxes/{of_service}")).await,
    ]
}

/// Null if the server can't tell at the moment.
async fn status_of(name: &str, admin: &support::Client) -> Value {
    let nodes = admin.get("/nodes").await.json;
    let found = nodes.as_array().and_then(|nodes| nodes.iter().find(|node| node["name"] == name).cloned());
    found.map_or(Value::Null, |node| node["status"].clone())
}

#[tokio::test]
async fn a_server_that_is_gone_is_named_with_a_retryable_error_until_it_is_back() {
    let (mut alpha, mut beta, _dir) = two(|config| config.control.lease = Duration::from_secs(3)).await;
    let id = alpha.create(json!({ "metadata": { "isopod.session": "s" } })).await;
    let made = alpha.client.post("/api/v1/sandboxes", json!({})).await;
    let of_service = made.json["id"].as_str().unwrap().to_owned();
    let admin = beta.key_of(Scope::Admin).await;
    assert_eq!((status_of("alpha", &admin).await, status_of("beta", &admin).await), (json!("ready"), json!("ready")));

    for gracefully in [false, true] {
        assert!(refusals(&beta, &id, &of_service).await.iter().all(|answer| answer.status == 421));
        if gracefully {
            alpha.stop().await;
            assert_eq!(status_of("alpha", &admin).await, "unhealthy", "it gave its lease up");
        } else {
            alpha.crash().await;
            until("its lease has run out", || async { status_of("alpha", &admin).await == "unhealthy" }).await;
        }
        for answer in refusals(&beta, &id, &of_service).await {
            let told = (answer.status, &answer.json["error_code"], &answer.json["details"]["server"]);
            assert_eq!(told, (503, &json!("server_unreachable"), &json!("alpha")), "{answer:?}");
            assert!(answer.headers["should-retry"] == "true" && answer.headers["retry-after"] == "5", "{answer:?}");
        }
        let inside = beta.client.inside(&id, 8080, "/").await;
        assert_eq!((inside.status, inside.text.contains("alpha")), (503, true), "{inside:?}");
        // Whether it exists is told to nobody else, as ever.
        assert_eq!(beta.other_team().await.get(&format!("/sandboxes/{id}")).await.status, 404);
        alpha = alpha.start_again().await;
        until("it is back", || async { status_of("alpha", &admin).await == "ready" }).await;
        assert_eq!(alpha.client.inside(&id, 8080, "/").await.status, 200, "its sandbox has not noticed");
    }
    beta.stop().await;
}

#[tokio::test]
async fn an_outage_of_the_database_makes_a_server_unreachable_only_until_it_is_over() {
    let mut postgres = Postgres::start();
    let (alpha, beta) = {
        let change = |config: &mut ServerConfig| config.control.lease = Duration::from_secs(1);
        let url = postgres.url("postgres");
        tokio::join!(Server::start_on((url.clone(), "alpha"), change), Server::start_on((url, "beta"), change))
    };
    let id = alpha.create(json!({})).await;
    let admin = alpha.key_of(Scope::Admin).await;
    let restarting = tokio::task::spawn_blocking(move || {
        postgres.stop();
        // More than a lease, so that those of both have run out.
        std::thread::sleep(Duration::from_millis(1500));
        postgres.start_again();
        postgres
    });
    let _postgres = restarting.await.unwrap();
    let path = format!("/sandboxes/{id}");
    until("both are back", || async {
        alpha.client.get(&path).await.status == 200
            && beta.client.get(&path).await.status == 421
            && status_of("beta", &admin).await == "ready"
    })
    .await;
}

#[tokio::test]
async fn the_list_of_nodes_counts_sandboxes_and_is_for_admins() {
    let (alpha, beta, _dir) = two(|_| {}).await;
    let (running, paused) = (alpha.create(json!({})).await, alpha.create(json!({})).await);
    assert_eq!(alpha.client.post(&format!("/sandboxes/{paused}/pause"), json!({})).await.status, 204);
    assert_eq!(beta.client.get("/nodes").await.status, 403, "a team's key");
    let admin = beta.key_of(Scope::Admin).await;
    let nodes = admin.get("/nodes").await.json;
    let shown = |index: usize, field: &str| nodes[index][field].clone();
    for (index, (name, counts, is_answering)) in
        [("alpha", (1, 1), false), ("beta", (0, 0), true)].into_iter().enumerate()
    {
        assert_eq!(shown(index, "name"), name);
        assert_eq!(
            (shown(index, "sandboxCount"), shown(index, "pausedSandboxCount")),
            (json!(counts.0), json!(counts.1))
        );
        assert_eq!((shown(index, "isAnswering"), shown(index, "status")), (json!(is_answering), json!("ready")));
        assert_eq!(shown(index, "version"), env!("CARGO_PKG_VERSION"));
    }
    assert_eq!(alpha.client.delete(&format!("/sandboxes/{running}")).await.status, 204);
    assert_eq!(admin.get("/nodes").await.json[0]["sandboxCount"], 0);
    // With a database of its own, a server is the only one.
    let single = Server::start().await;
    let nodes = single.key_of(Scope::Admin).await.get("/nodes").await.json;
    assert_eq!(nodes.as_array().unwrap().len(), 1, "{nodes}");
    assert_eq!((&nodes[0]["isAnswering"], &nodes[0]["status"]), (&json!(true), &json!("ready")));
}

#[tokio::test]
async fn what_another_server_made_is_not_ended_forgotten_or_made_again() {
    let (alpha, beta, _dir) = two(|_| {}).await;
    // A retry that reaches the other server is not told that its sandbox has ended.
    let again = |server: &Server| {
        let client = server.client.clone();
        let body = json!({ "templateID": "base" });
        async move { client.call(Method::POST, "/v2/sandboxes", &[("idempotency-key", "k")], Some(body)).await }
    };
    assert_eq!(again(&alpha).await.status, 201);
    let told = again(&beta).await;
    assert_eq!((told.status, &told.json["details"]["server"]), (421, &json!("alpha")), "{told:?}");
    // A task is ended where its sandbox is.
    for (path, body) in
        [("agents", json!({ "id": "a1", "name": "ada" })), ("tasks", json!({ "id": "t1", "title": "x" }))]
    {
        assert_eq!(alpha.client.post(&format!("/api/v1/{path}"), body).await.status, 201);
    }
    let begun = alpha.client.post("/api/v1/agents/a1/start-task", json!({ "task_id": "t1" })).await;
    assert_eq!(begun.status, 201, "{begun:?}");
    let refused = beta.client.post("/api/v1/tasks/t1/finish", json!({})).await;
    assert_eq!((refused.status, &refused.json["details"]["server"]), (421, &json!("alpha")), "{refused:?}");
    assert_eq!(alpha.client.get("/api/v1/tasks/t1").await.json["status"], "in_progress");
    assert_eq!(alpha.node.count(), 2);
    assert_eq!(alpha.client.post("/api/v1/tasks/t1/finish", json!({})).await.status, 200);
    assert_eq!(alpha.node.count(), 1);
}

#[tokio::test]
async fn a_server_that_starts_again_takes_over_its_own_and_nothing_else() {
    let (mut alpha, beta, _dir) = two(|config| config.control.recheck_every = Duration::from_millis(30)).await;
    let (of_alpha, of_beta) = (alpha.create(json!({})).await, beta.create(json!({})).await);
    alpha.crash().await;
    let alpha = alpha.start_again().await;
    until("both go on", || async {
        alpha.client.inside(&of_alpha, 8080, "/").await.status == 200
            && beta.client.inside(&of_beta, 8080, "/").await.status == 200
    })
    .await;
    // Several checks of both, of rows and sandboxes.
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!((alpha.node.count(), beta.node.count()), (1, 1));
    assert_eq!(beta.client.get(&format!("/sandboxes/{of_alpha}")).await.status, 421);
    assert_eq!(alpha.client.get("/v2/sandboxes").await.json.as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn two_servers_that_reap_and_deliver_at_once_do_nothing_twice() {
    let (alpha, beta, _dir) = two(|config| {
        config.control.allow_internal_webhooks = true;
        config.service.check_every = Duration::from_millis(50);
        config.service.reap_every = Duration::from_millis(50);
        config.service.stale_after = Duration::from_millis(1500);
    })
    .await;
    let told = Arc::<Mutex<HashMap<String, u32>>>::default();
    let url = receive(Arc::clone(&told)).await;
    let events = ["sandbox.lifecycle.created", "sandbox.lifecycle.killed"];
    let hook = json!({ "name": "mine", "url": url, "events": events, "signatureSecret": "a-secret-of-some-length" });
    assert_eq!(alpha.client.post("/events/webhooks", hook).await.status, 201);
    let create = |server: &Server| {
        let client = server.client.clone();
        async move { client.post("/api/v1/sandboxes", json!({})).await }
    };
    let made = futures::future::join_all((0..10).flat_map(|_| [create(&alpha), create(&beta)])).await;
    assert!(made.iter().all(|answer| answer.status == 201), "{made:?}");
    until("all are reaped", || async { alpha.node.count() + beta.node.count() == 0 }).await;
    until("all is told", || async { told.lock().unwrap().len() == 40 }).await;
    // Time for what should not happen.
    tokio::time::sleep(Duration::from_millis(1500)).await;
    let told = told.lock().unwrap().clone();
    assert!(told.values().all(|times| *times == 1) && told.len() == 40, "{told:?}");
    let reaped: Vec<Value> = alpha.client.get("/api/v1/audit?action=sandbox.reaped&limit=100").await.json["lines"]
        .as_array()
        .unwrap()
        .clone();
    assert_eq!(reaped.len(), 20, "each is reaped once");
    assert_chains(&alpha, 2).await;
}

/// PostgreSQL is restarted under load.
#[tokio::test]
async fn a_database_that_is_restarted_under_load_costs_no_record_and_no_sandbox() {
    let mut postgres = Postgres::start();
    let quick = |config: &mut ServerConfig| {
        config.control.recheck_every = Duration::from_millis(100);
        config.service.check_every = Duration::from_millis(100);
    };
    let server = Server::start_on((postgres.url("postgres"), "alpha"), quick).await;
    let load = |client: support::Client| async move {
        let mut answers = Vec::new();
        for _ in 0..15 {
            answers.push(client.post("/api/v1/sandboxes", json!({})).await);
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        answers
    };
    let running: Vec<_> = (0..4).map(|_| tokio::spawn(load(server.client.clone()))).collect();
    tokio::time::sleep(Duration::from_millis(300)).await;
    let restarting = tokio::task::spawn_blocking(move || {
        postgres.stop();
        std::thread::sleep(Duration::from_millis(500));
        postgres.start_again();
        postgres
    });
    let _postgres = restarting.await.unwrap();
    let answers: Vec<_> = futures::future::join_all(running).await.into_iter().flat_map(Result::unwrap).collect();
    for answer in &answers {
        assert!([201, 503].contains(&answer.status), "{answer:?}");
    }
    let made = answers.iter().filter(|answer| answer.status == 201).count();
    assert!(made > 0, "nothing was made");
    until("it goes on", || async { server.client.post("/api/v1/sandboxes", json!({})).await.status == 201 }).await;
    until("rows and sandboxes agree", || async {
        let listed = server.client.get("/v2/sandboxes?limit=100").await.json;
        let of_service = server.client.get("/api/v1/sandboxes?status=running&limit=100").await.json;
        let count = |list: &Value| list.as_array().map_or(0, Vec::len);
        let counts = (count(&listed), count(&of_service["sandboxes"]));
        counts == (server.node.count(), server.node.count())
    })
    .await;
    assert!(server.node.count() > made, "what somebody has an answer for is there");
    let lines = server.client.get("/api/v1/audit?action=sandbox.create&limit=100").await.json["lines"].clone();
    let good = lines.as_array().unwrap().iter().filter(|line| line["status"] == 201).count();
    assert!(good > made, "{good} lines for {made} answers and one more");
    assert_chains(&server, 1).await;
}

async fn assert_chains(server: &Server, count: usize) {
    let admin = server.key_of(Scope::Admin).await;
    let chains = server.store().audit_chains().await.unwrap();
    assert_eq!(chains.len(), count, "{chains:?}");
    for chain in &chains {
        let verified = server.store().verify_audit(&chain.server).await.unwrap();
        assert_eq!((verified.broken_at, verified.lines), (None, chain.lines));
    }
    assert_eq!(admin.get("/api/v1/audit/verify").await.status, 200);
}

/// Counts how often each event is delivered.
async fn receive(told: Arc<Mutex<HashMap<String, u32>>>) -> String {
    let service = hyper::service::service_fn(move |request: Request<Incoming>| {
        let told = Arc::clone(&told);
        async move {
            let body = request.into_body().collect().await.unwrap().to_bytes();
            let event: Value = serde_json::from_slice(&body).unwrap();
            *told.lock().unwrap().entry(event["id"].as_str().unwrap().to_owned()).or_default() += 1;
            Ok::<_, Infallible>(Response::new(Full::<Bytes>::default()))
        }
    });
    format!("http://{}/hook", serve_http(service).await)
}
