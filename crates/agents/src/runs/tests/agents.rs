//! Agents that are real HTTP servers: good ones, and those that hang, lie and break.

use std::sync::Mutex;

use bytes::Bytes;
use http::{Method, Request, Response};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use serde_json::json;

use super::*;

/// An agent service. The prompt determines its reply.
#[derive(Default)]
struct Service {
    invocations: Mutex<Vec<Value>>,
    cleanups: Mutex<Vec<String>>,
}

impl Service {
    async fn start(self: &Arc<Self>) -> String {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let service = Arc::clone(self);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let service = Arc::clone(&service);
                let answer = hyper::service::service_fn(move |request| Arc::clone(&service).answer(request));
                tokio::spawn(hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), answer));
            }
        });
        url
    }

    async fn answer(self: Arc<Self>, request: Request<Incoming>) -> hyper::Result<Response<Full<Bytes>>> {
        if request.method() == Method::DELETE {
            let mut cleanups = self.cleanups.lock().unwrap();
            cleanups.push(request.uri().path().to_owned());
            // The first request fails.
            let status = if cleanups.len() == 1 { 503 } else { 200 };
            return Ok(response(status, "{}"));
        }
        assert_eq!(request.uri().path(), "/invoke");
        let body = request.into_body().collect().await?.to_bytes();
        let invocation: Value = serde_json::from_slice(&body).unwrap();
        let prompt = invocation["prompt"].as_str().unwrap().to_owned();
        let count = {
            let mut seen = self.invocations.lock().unwrap();
            seen.push(invocation.clone());
            seen.iter().filter(|seen| seen["agent_id"] == invocation["agent_id"]).count()
        };
        let good = |output: Value| {
            json!({ "agent_id": invocation["agent_id"], "success": true, "output": output,
            "tokens_used": 40, "thought_signature": "sig", "executed_tools": ["execute_python"] })
        };
        Ok(match prompt.as_str() {
            "hang" => std::future::pending().await,
            "garbage" => response(200, "<html>not found</html>"),
            "broken once" if count == 1 => response(500, "trouble"),
            "broken" => response(500, "trouble"),
            "refuse" => response(200, &json!({ "success": false, "error": "I will not" }).to_string()),
            "null" if count == 1 => response(200, &good(json!("[STATUS: NULL]")).to_string()),
            "search" => {
                let mut reply = good(json!("found it"));
                reply["executed_tools"] = json!([{ "name": "web_search", "args": { "query": "it" } }]);
                response(200, &reply.to_string())
            }
            "save" => {
                let mut reply = good(json!("saved it"));
                reply["executed_tools"] = json!(["write_file"]);
                response(200, &reply.to_string())
            }
            "nothing" => response(200, &good(json!("  ")).to_string()),
            "delegate" => response(
                200,
                &with(
                    good(json!("x")),
                    json!({ "reason": "more to do", "new_nodes": [
                { "id": "extra", "prompt": "fine" }, { "id": "last", "prompt": "fine", "depends_on": ["extra"] } ] }),
                )
                .to_string(),
            ),
            "circle" => response(
                200,
                &with(
                    good(json!("x")),
                    json!({ "reason": "?", "new_nodes": [
                { "id": "extra", "prompt": "fine", "depends_on": ["after"] } ] }),
                )
                .to_string(),
            ),
            _ => response(200, &good(json!({ "answer": 42, "files_generated": ["plot.png"] })).to_string()),
        })
    }

    fn command(&self) -> Vec<String> {
        self.invocations.lock().unwrap().iter().map(|seen| seen["agent_id"].as_str().unwrap().to_owned()).collect()
    }
}

fn with(mut reply: Value, delegation: Value) -> Value {
    reply["delegation"] = delegation;
    reply
}

fn response(status: u16, body: &str) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(body.to_owned())));
    *response.status_mut() = http::StatusCode::from_u16(status).unwrap();
    response
}

struct Stage {
    _dir: tempfile::TempDir,
    server: TestServer,
    service: Arc<Service>,
    home: String,
}

async fn stage() -> Stage {
    let service = Arc::new(Service::default());
    let home = service.start().await;
    let dir = tempfile::tempdir().unwrap();
    let server = TestServer::begin_with(dir.path(), &Arc::default(), Killer::never(), Some(home.clone())).await;
    Stage { _dir: dir, server, service, home }
}

#[tokio::test]
async fn agents_are_invoked_with_what_came_before_and_told_of_the_end() {
    let stage = stage().await;
    let (server, service) = (&stage.server, &stage.service);
    let id = server.start("agents: [{id: a, prompt: one, model: thinking}, {id: b, prompt: two, depends_on: [a], tools: [execute_python], user_directive: quickly}]").await;
    assert_eq!(server.ended(&id).await.1, "completed");
    let seen = service.invocations.lock().unwrap().clone();
    assert_eq!((seen[0]["thinking_level"].as_i64(), seen[0]["model"].as_str()), (Some(5), Some("thinking")));
    let second = &seen[1];
    assert_eq!(second["run_id"], id.as_str());
    assert_eq!((&second["input_data"]["a"]["answer"], &second["parent_signature"]), (&json!(42), &json!("sig")));
    assert_eq!((&second["file_paths"], &second["user_directive"]), (&json!(["plot.png"]), &json!("quickly")));
    assert!(second["graph_view"].as_str().unwrap().contains("[success] a"));
    let cleanups = service.cleanups.lock().unwrap().clone();
    assert_eq!(cleanups, [format!("/runtime/{id}/cleanup"), format!("/runtime/{id}/cleanup")], "asked again after 503");
    let state = server.state(&id).await;
    assert_eq!(
        (state["total_tokens_used"].as_u64(), state["invocations"][0]["tokens_used"].as_u64()),
        (Some(80), Some(40))
    );
    let attempt = &state["invocations"][0];
    let fields = ["agent_id", "model_variant", "status", "artifact_id", "error_message"].map(|name| &attempt[name]);
    assert_eq!(fields, [&json!("a"), &json!("thinking"), &json!("success"), &json!("plot.png"), &Value::Null]);
    assert!(attempt["latency_ms"].is_u64(), "{attempt}");
    let at = attempt["timestamp"].as_str().unwrap();
    assert!((state["start_time"].as_str().unwrap()..=state["end_time"].as_str().unwrap()).contains(&at), "{state}");
    assert_eq!(state["invocations"][1]["model_variant"], "fast", "the default");
    assert_eq!(server.runs.signatures(&id).await.unwrap(), json!({ "a": "sig", "b": "sig" }));
}

/// The agent service is notified of the end, whatever the reason.
#[tokio::test]
async fn agents_that_hang_lie_break_or_refuse_fail_their_node() {
    let stage = stage().await;
    let (server, service) = (&stage.server, &stage.service);
    for (prompt, expected) in
        [("hang", "did not reply"), ("garbage", "invalid reply"), ("broken", "500"), ("refuse", "I will not")]
    {
        let id = server.start(&format!("nodes: [{{id: a, prompt: {prompt}, timeout: 0.2}}]")).await;
        assert_eq!(server.ended(&id).await.1, "node_failed");
        let error = server.row(&id).await.error.unwrap();
        assert!(error.contains(expected), "{prompt}: {error}");
        let state = server.state(&id).await;
        let attempt = &state["invocations"][0];
        assert_eq!((&attempt["status"], &attempt["artifact_id"]), (&json!("failed"), &Value::Null), "{attempt}");
        assert!(attempt["error_message"].as_str().unwrap().contains(expected), "{prompt}: {attempt}");
        assert!(prompt != "hang" || attempt["latency_ms"].as_u64() >= Some(200), "the node's time: {attempt}");
        let told = format!("/runtime/{id}/cleanup");
        assert!(service.cleanups.lock().unwrap().contains(&told), "{prompt}: nobody was told of the end");
    }
    let nobody = server.start("nodes: [{id: a, agent: 'http://127.0.0.1:1/'}]").await;
    assert_eq!(server.ended(&nobody).await.1, "node_failed");
    let state = server.state(&nobody).await;
    assert_eq!((&state["cleaned_up"], &state["cleanup_failed"]), (&json!(false), &json!(true)), "{state}");
    let again = server.start("nodes: [{id: a, prompt: broken once, retries: 1}]").await;
    assert_eq!(server.ended(&again).await.1, "completed");
}

#[tokio::test]
async fn more_tokens_than_the_budget_end_the_run() {
    let stage = stage().await;
    let server = &stage.server;
    let id = server
        .start("max_token_budget: 60\nnodes: [{id: a}, {id: b, depends_on: [a]}, {id: c, depends_on: [b]}]")
        .await;
    assert_eq!(server.ended(&id).await.1, "budget_exceeded");
    assert_eq!(server.state(&id).await["total_tokens_used"], 80);
}

#[tokio::test]
async fn a_delegation_puts_nodes_before_what_waited_and_only_where_it_is_allowed() {
    let stage = stage().await;
    let (server, service) = (&stage.server, &stage.service);
    let flow = |allowed: bool| {
        format!("nodes: [{{id: a, prompt: delegate, allow_delegation: {allowed}}}, {{id: after, depends_on: [a]}}]")
    };
    let id = server.start(&flow(true)).await;
    assert_eq!(server.ended(&id).await.1, "completed");
    assert_eq!(service.command(), ["a", "extra", "last", "after"]);
    let id = server.start(&flow(false)).await;
    assert_eq!(server.ended(&id).await.1, "completed");
    assert_eq!(service.command()[4..], ["a", "after"]);
    let circle =
        server.start("nodes: [{id: a, prompt: circle, allow_delegation: true}, {id: after, depends_on: [a]}]").await;
    assert_eq!(server.ended(&circle).await.1, "invalid_delegation");
}

/// Two runs of one workflow, one of which changes its graph.
#[tokio::test]
async fn a_delegation_changes_its_own_run_only() {
    let stage = stage().await;
    let server = &stage.server;
    let flow = "id: same\nnodes: [{id: a, prompt: delegate, allow_delegation: true}, {id: after, depends_on: [a], approval: true}]";
    let first = server.start(flow).await;
    server.until(&first, RunStatus::AwaitingApproval).await;
    let plain = server.start("id: same\nnodes: [{id: a, prompt: fine}]").await;
    assert_eq!(server.ended(&plain).await.1, "completed");
    assert_eq!(server.state(&plain).await["nodes"].as_array().unwrap().len(), 1);
    server.command(&first, Command::Resume).await.unwrap();
    assert_eq!(server.ended(&first).await.1, "completed");
    assert_eq!(server.state(&first).await["nodes"].as_array().unwrap().len(), 4);
}

#[tokio::test]
async fn an_empty_answer_waits_for_a_person_instead_of_failing() {
    let stage = stage().await;
    let (server, service) = (&stage.server, &stage.service);
    let id = server.start("agents: [{id: a, prompt: 'null'}]").await;
    server.until(&id, RunStatus::AwaitingApproval).await;
    server.command(&id, Command::Resume).await.unwrap();
    assert_eq!(server.ended(&id).await.1, "completed");
    let toolless = server.start("agents: [{id: research_x, prompt: fine}]").await;
    server.until(&toolless, RunStatus::AwaitingApproval).await;
    server.command(&toolless, Command::Stop).await.unwrap();
    let without_code = server.start("agents: [{id: analyze_x, prompt: search}]").await;
    server.until(&without_code, RunStatus::AwaitingApproval).await;
    server.command(&without_code, Command::Stop).await.unwrap();
    let satisfied =
        ["{id: coder_x, prompt: fine}", "{id: research_x, prompt: search}", "{id: analyze_x, prompt: save}"];
    for used in satisfied {
        let used = server.start(&format!("agents: [{used}]")).await;
        assert_eq!(server.ended(&used).await, (RunStatus::Completed, "completed".to_owned()));
    }
    assert_eq!(service.command().len(), 7);
}

#[tokio::test]
async fn an_agent_whose_parents_gave_nothing_waits_for_a_person() {
    let stage = stage().await;
    let (server, service) = (&stage.server, &stage.service);
    let id = server.start("agents: [{id: a, prompt: nothing}, {id: b, prompt: fine, depends_on: [a]}]").await;
    server.until(&id, RunStatus::AwaitingApproval).await;
    assert_eq!(service.command(), ["a"]);
    server.command(&id, Command::Resume).await.unwrap();
    assert_eq!(server.ended(&id).await.1, "completed");
    assert_eq!(service.command(), ["a", "b"]);
    let fed = "agents: [{id: a, prompt: nothing}, {id: c, prompt: fine}, {id: b, prompt: fine, depends_on: [a, c]}]";
    assert_eq!(server.ended(&server.start(fed).await).await.1, "completed", "one parent with output is enough");
}

#[tokio::test]
async fn an_agent_without_a_url_is_refused_where_no_service_is_known() {
    let dir = tempfile::tempdir().unwrap();
    let server = TestServer::begin(dir.path(), &Arc::default()).await;
    let workflow = Workflow::parse("nodes: [{id: a, prompt: x}]").unwrap();
    let refused = server.runs.start(RunId::random(), server.team.clone(), "public".to_owned(), workflow).await;
    assert!(matches!(refused, Err(StartError::NoAgent(_))));
}

/// Services that only nodes name, one of them twice, and one that is called by delegation only.
#[tokio::test]
async fn every_service_that_a_run_called_is_told_of_its_end_once() {
    let stage = stage().await;
    let (first, second) = (Arc::new(Service::default()), Arc::new(Service::default()));
    let (one, two) = (first.start().await, second.start().await);
    let flow = format!(
        "nodes: [{{id: a, agent: '{one}', prompt: delegate, allow_delegation: true}}, \
         {{id: b, agent: '{one}/', depends_on: [a]}}, {{id: c, agent: '{two}', prompt: fine, depends_on: [b]}}, \
         {{id: d, prompt: fine, depends_on: [c]}}, {{id: never, agent: 'http://127.0.0.1:1', depends_on: [d], approval: true}}]"
    );
    let id = stage.server.start(&flow).await;
    stage.server.until(&id, RunStatus::AwaitingApproval).await;
    stage.server.command(&id, Command::Stop).await.unwrap();
    assert_eq!(stage.server.ended(&id).await.1, "stopped");
    assert_eq!(first.command(), ["a", "extra", "last", "b"], "agents without a URL are where their delegator is");
    assert_eq!((second.command(), stage.service.command()), (vec!["c".to_owned()], vec!["d".to_owned()]));
    for service in [&first, &second, &stage.service] {
        let told = format!("/runtime/{id}/cleanup");
        assert_eq!(*service.cleanups.lock().unwrap(), [told.clone(), told], "the first answer is 503");
    }
    let state = stage.server.state(&id).await;
    assert_eq!((&state["cleaned_up"], &state["cleanup_failed"]), (&json!(true), &json!(false)), "{state}");
    let services = state["agent_services"].as_array().unwrap();
    assert_eq!(services.len(), 3, "{services:?}");
    assert!(services.iter().all(|service| service["cleanup"] == "done" && service["attempts"] == 2), "{services:?}");
    assert!(!state.to_string().contains(&stage.home), "the operator's URL is not shown");
}

/// It is recorded which services a run has called before it calls them.
#[tokio::test]
async fn the_next_server_tells_the_services_of_a_run_that_ended_before() {
    let service = Arc::new(Service::default());
    let url = service.start().await;
    let dir = tempfile::tempdir().unwrap();
    let world = Arc::default();
    // The steps are the commits of the start, of the first node and of the end, and then the removal of the sandbox.
    let killer = Killer::at(6);
    let server = TestServer::begin_with(dir.path(), &world, Arc::clone(&killer), None).await;
    let id = server.start(&format!("nodes: [{{id: a, agent: '{url}', prompt: fine}}]")).await;
    killer.has_killed().await;
    assert!(server.row(&id).await.status.is_terminal(), "it has ended");
    assert_eq!(server.store.cleanup_done(&id).await.unwrap(), Some(false));
    drop(server);
    assert_eq!(*service.cleanups.lock().unwrap(), Vec::<String>::new());
    let server = TestServer::begin(dir.path(), &world).await;
    assert_eq!(server.ended(&id).await.1, "completed");
    assert_eq!(service.command(), ["a"]);
    assert_eq!(service.cleanups.lock().unwrap().len(), 2, "503, then 200");
}
