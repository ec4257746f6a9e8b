//! The agent's tool against a server whose responses the test defines.
#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "tests may fail loudly and say why they were skipped")]

mod support;

use http::Method;
use isopod_client::tool::{SandboxTool, ToolError, ToolResult};
use isopod_client::{Client, ClientConfig};
use serde_json::json;
use support::server::{Received, Reply, Server, json as reply, text};

fn answer(number: usize, request: &Received) -> Reply {
    match (&request.method, request.path.split('?').next().unwrap()) {
        (&Method::POST, "/v2/sandboxes") => reply(
            201,
            json!({ "sandboxID": format!("i{number}"), "templateID": "python3", "clientID": "c", "envdVersion": "0.6.13" }),
        ),
        (&Method::POST, "/files") => reply(200, json!([{ "name": "a", "path": "/home/user/a" }])),
        (&Method::POST, "/execute") => {
            let code = request.json()["code"].as_str().unwrap().to_owned();
            let lines = if code == "1/0" {
                "{\"type\":\"error\",\"name\":\"ZeroDivisionError\",\"value\":\"division by zero\",\"traceback\":\"\"}\n"
            } else {
                "{\"type\":\"stdout\",\"text\":\"hello\\n\",\"timestamp\":1}\n"
            };
            text(200, lines)
        }
        (&Method::DELETE, _) => text(204, ""),
        other => panic!("unexpected {other:?}"),
    }
}

fn client(server: &Server) -> Client {
    let config = ClientConfig {
        api_url: server.url.clone(),
        api_key: "e2b_key".into(),
        sandbox_url: Some(server.url.clone()),
        domain: None,
    };
    Client::new(config).unwrap()
}

fn ended(server: &Server) -> Vec<String> {
    let deletes = server.received().into_iter().filter(|request| request.method == Method::DELETE);
    deletes.map(|request| request.path.trim_start_matches("/sandboxes/").to_owned()).collect()
}

/// An error if it was not created.
#[tokio::test]
async fn nothing_runs_before_there_is_a_sandbox() {
    let server = Server::start(answer).await;
    let mut tool = SandboxTool::new(client(&server));
    assert!(matches!(tool.run_code("1").await, Err(ToolError::NoSandbox)));
    assert!(matches!(tool.run_command("true").await, Err(ToolError::NoSandbox)));
    assert!(matches!(tool.write_files([("a", "b")]).await, Err(ToolError::NoSandbox)));
    assert!(matches!(tool.create_sandbox("").await, Err(ToolError::Empty(_))));
    tool.close().await.unwrap();
    assert!(server.received().is_empty());
}

/// A second create ends the first sandbox instead of leaking it.
#[tokio::test]
async fn a_second_sandbox_ends_the_first() {
    let server = Server::start(answer).await;
    let mut tool = SandboxTool::new(client(&server));
    let first = tool.create_sandbox("python3").await.unwrap().to_string();
    let second = tool.create_sandbox("nodejs").await.unwrap().to_string();
    assert_eq!(ended(&server), std::slice::from_ref(&first));
    tool.close().await.unwrap();
    tool.close().await.unwrap();
    assert_eq!(ended(&server), [first, second]);
}

/// Create, write, run, close, also if the work fails.
#[tokio::test]
async fn a_scope_ends_its_sandbox_whatever_happens() {
    let server = Server::start(answer).await;
    let text = SandboxTool::scope(client(&server), "python3", async |tool| {
        tool.write_files([("app.py", "print('hello')")]).await?;
        assert!(matches!(tool.write_files([("", "x")]).await, Err(ToolError::Empty(_))));
        assert!(matches!(tool.run_code("  ").await, Err(ToolError::Empty(_))));
        Ok::<_, ToolError>(tool.run_code("print('hello')").await?.text())
    });
    assert_eq!(text.await.unwrap(), "hello\n");
    assert_eq!(ended(&server).len(), 1);
    let failed = SandboxTool::scope(client(&server), "python3", async |tool| {
        let failed = tool.run_code("1/0").await?;
        assert_eq!(failed.text(), "Error: ZeroDivisionError: division by zero");
        Err::<(), _>(ToolError::NoSandbox)
    });
    assert!(matches!(failed.await, Err(ToolError::NoSandbox)));
    assert_eq!(ended(&server).len(), 2);
    assert_eq!(ToolResult::default().text(), "Task completed successfully");
}

#[tokio::test]
async fn a_tool_that_is_dropped_ends_its_sandbox() {
    let server = Server::start(answer).await;
    let mut tool = SandboxTool::new(client(&server));
    tool.create_sandbox("python3").await.unwrap();
    drop(tool);
    for _ in 0..500 {
        if ended(&server).len() == 1 {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    panic!("the sandbox was not ended");
}
