//! Routes for agent services: what an agent would be sent, and plans that become workflows.

use crate::support;

use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use isopod_store::Scope;
use serde_json::{Value, json};
use support::Server;
use support::outside::serve_http;
use support::server::until;

/// Answers each request with what the test has set, and keeps the path and the body.
#[derive(Default)]
struct Service {
    answer: Mutex<(u16, Value)>,
    heard: Mutex<Vec<(String, Value)>>,
}

impl Service {
    async fn start(self: &Arc<Self>) -> String {
        let service = Arc::clone(self);
        let answer = hyper::service::service_fn(move |request| Arc::clone(&service).answer(request));
        format!("http://{}", serve_http(answer).await)
    }

    async fn answer(self: Arc<Self>, request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
        let path = request.uri().path().to_owned();
        let body = request.into_body().collect().await.unwrap().to_bytes();
        self.heard.lock().unwrap().push((path, serde_json::from_slice(&body).unwrap_or_default()));
        let (status, body) = self.answer.lock().unwrap().clone();
        Ok(Response::builder().status(status).body(Full::new(Bytes::from(body.to_string()))).unwrap())
    }

    fn set(&self, status: u16, body: Value) {
        *self.answer.lock().unwrap() = (status, body);
    }
}

async fn with_service(service: &Arc<Service>) -> Server {
    let url = service.start().await;
    Server::start_with(move |config| config.agents.runs.agent_url = Some(url.clone())).await
}

#[tokio::test]
async fn an_invocation_is_what_the_agent_is_sent() {
    let service = Arc::new(Service::default());
    let output = json!({ "answer": 42, "files_generated": ["plot.png"] });
    service.set(200, json!({ "success": true, "output": output, "thought_signature": "sig" }));
    let server = with_service(&service).await;
    let flow = json!({ "nodes": [
        { "id": "first", "prompt": "look" },
        { "id": "second", "prompt": "think", "model": "thinking", "tools": ["execute_python"], "depends_on": ["first"],
          "approval": true },
        { "id": "third", "command": "true", "depends_on": ["second"] },
    ] });
    let run = server.client.post("/runtime/start", flow).await.json["run_id"].as_str().unwrap().to_owned();
    let status = async || server.client.get(&format!("/runtime/state?run_id={run}")).await.json["status"].clone();
    until("it waits", || async { status().await == "awaitingapproval" }).await;
    let path = format!("/runtime/{run}/agent/second/invoke");
    let shown = server.client.post(&path, Value::Null).await;
    assert_eq!(shown.status, 200, "{shown:?}");
    assert_eq!(service.heard.lock().unwrap().len(), 1, "it invokes nothing");
    assert_eq!((&shown.json["run_id"], &shown.json["agent_id"]), (&json!(run), &json!("second")));
    assert_eq!(shown.json["input_data"], json!({ "first": output }));
    assert_eq!((&shown.json["parent_signature"], &shown.json["thinking_level"]), (&json!("sig"), &json!(5)));
    assert_eq!((&shown.json["file_paths"], &shown.json["tools"]), (&json!(["plot.png"]), &json!(["execute_python"])));

    server.client.post(&format!("/runtime/{run}/resume"), json!({})).await;
    until("it was sent", || async { service.heard.lock().unwrap().len() > 1 }).await;
    let (called, mut sent) = service.heard.lock().unwrap()[1].clone();
    assert_eq!(called, "/invoke");
    let (waiting, running) = ("[paused] second <- first", "[running] second <- first");
    let view = shown.json["graph_view"].as_str().unwrap();
    assert!(view.contains(waiting), "{view}");
    sent["graph_view"] = json!(sent["graph_view"].as_str().unwrap().replace(running, waiting));
    assert_eq!(sent, shown.json);

    for nobody in [format!("/runtime/{run}/agent/nobody/invoke"), format!("/runtime/{run}/agent/third/invoke")] {
        assert_eq!(server.client.post(&nobody, Value::Null).await.status, 404, "{nobody}");
    }
    assert_eq!(server.client.post("/runtime/nobody/agent/second/invoke", Value::Null).await.status, 404);
    assert_eq!(server.other_team().await.post(&path, Value::Null).await.status, 404);
}

#[tokio::test]
async fn a_plan_of_the_agent_service_can_be_started_or_is_refused_with_a_reason() {
    let service = Arc::new(Service::default());
    let server = with_service(&service).await;
    let plan = async |text: &str| server.client.post("/plan", json!({ "text": text })).await;
    let good = json!({ "name": "Research", "agents": [
        { "id": "research_x", "role": "worker", "model": "fast", "tools": [], "prompt": "go", "depends_on": [] } ] });
    service.set(200, good.clone());
    let planned = plan("find out").await;
    assert_eq!((planned.status, &planned.json), (200, &good), "{planned:?}");
    assert_eq!(service.heard.lock().unwrap()[0], ("/plan".to_owned(), json!({ "text": "find out" })));
    assert_eq!(server.client.post("/runtime/start", planned.json).await.status, 200);

    let circle = json!({ "agents": [{ "id": "a", "depends_on": ["b"] }, { "id": "b", "depends_on": ["a"] }] });
    for (answer, status, words) in [
        ((200, circle), 422, "cycle"),
        ((200, json!({ "wat": 1 })), 422, "wat"),
        ((500, json!("no model")), 502, "500"),
        ((200, json!("words")), 422, "cannot parse"),
    ] {
        service.set(answer.0, answer.1);
        let refused = plan("x").await;
        assert_eq!(refused.status, status, "{refused:?}");
        assert!(refused.json["message"].as_str().unwrap().contains(words), "{words}: {refused:?}");
    }
    for bad in [json!({ "text": " " }), json!({}), json!({ "text": "x", "more": 1 })] {
        assert_eq!(server.client.post("/plan", bad).await.status, 400);
    }
    assert_eq!(server.key_of(Scope::ReadOnly).await.post("/plan", json!({ "text": "x" })).await.status, 403);
    let without = Server::start().await;
    let refused = without.client.post("/plan", json!({ "text": "x" })).await;
    assert!(
        refused.status == 501 && refused.json["message"].as_str().unwrap().contains("agent service"),
        "{refused:?}"
    );
}
