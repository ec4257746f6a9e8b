//! Measures workflow runs: many at once on real sandboxes, and how soon a node's successor starts.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use isopod_client::sandbox::ListSandboxes;
use isopod_client::{Client, ClientConfig};
use isopod_testkit::StateDir;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;

use crate::report::{Bound, Report, Table};
use crate::samples::{Samples, millis};
use crate::scale::Scale;
use crate::server::{KEY, start_ours};
use crate::stage::abandon_if_held;

const TEMPLATE: &str = "code-interpreter-v1";
const NODES: usize = 5;

pub(crate) async fn measure(binary: &Path, scale: &Scale, report: &mut Report) -> anyhow::Result<()> {
    let state = StateDir::new(binary).with_shared_templates();
    let mut table = Table::new("Runs of workflows", &["measure", "n", "p50", "p99", "target"]);
    {
        let server = start_ours(binary, &state, &["--prepare", TEMPLATE, "--pool-ready", "10"])?;
        let url = format!("http://{}", server.address);
        let config =
            ClientConfig { api_url: url.clone(), api_key: KEY.to_owned(), sandbox_url: Some(url), domain: None };
        let client = Client::new(config)?;
        let gaps = successor_gaps(&client, scale.workflow_chain).await?;
        row(&mut table, "a node's answer → its successor is invoked, ms", &gaps, Some(2.0));
        let runs = crowd(&client, scale.workflow_runs).await?;
        row(&mut table, &format!("a run of {NODES} nodes among {} at once, ms", scale.workflow_runs), &runs, None);
    }
    abandon_if_held(state);
    table.note("The gap is measured at the agent, from its answer to the next request: it holds two HTTP messages, a connection and a transaction.");
    report.add(&table);
    Ok(())
}

fn row(table: &mut Table, name: &str, samples: &Samples, bound: Option<f64>) {
    let verdict = bound.map(|bound| Bound::AtMost(bound).verdict(samples.median().as_secs_f64() * 1e3));
    table.row(&[
        name.to_owned(),
        samples.len().to_string(),
        millis(samples.median()),
        millis(samples.percentile(99)),
        verdict.map(|verdict| format!("p50 {verdict}")).unwrap_or_default(),
    ]);
}

/// Starts all runs at once. Fails if a node or a sandbox is missing or left over.
async fn crowd(client: &Client, count: usize) -> anyhow::Result<Samples> {
    let node = |place: usize| {
        let on: Vec<String> = if place == 0 { Vec::new() } else { vec![format!("n{}", (place - 1) / 2)] };
        json!({ "id": format!("n{place}"), "command": format!("echo {place} >> ran; wc -l < ran"), "depends_on": on, "timeout": 600 })
    };
    let flow = json!({ "name": "crowd", "nodes": (0..NODES).map(node).collect::<Vec<_>>() }).to_string();
    let runs: Vec<_> = (0..count)
        .map(|_| {
            let (client, flow) = (client.clone(), flow.clone());
            tokio::spawn(async move { one_of_many(&client, &flow).await })
        })
        .collect();
    let mut samples = Samples::default();
    for run in runs {
        samples.push(run.await??);
    }
    let left = client.list(ListSandboxes::default()).collect().await?;
    ensure!(left.is_empty(), "{} sandboxes are left", left.len());
    Ok(samples)
}

async fn one_of_many(client: &Client, flow: &str) -> anyhow::Result<Duration> {
    let began = Instant::now();
    let run = client.start_run(flow).await?;
    let mut events = client.run_events(&run, 0).await?;
    while events.next().await?.is_some() {}
    let took = began.elapsed();
    loop {
        let state = client.run_state(&run).await?;
        let done = state["completed_agents"].as_array().map_or(0, Vec::len);
        ensure!(done == NODES, "{done} of {NODES} nodes are done: {state}");
        if state["cleaned_up"] == true {
            return Ok(took);
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// A chain of agents, all the same one, which records when it is called and when it has answered.
async fn successor_gaps(client: &Client, length: usize) -> anyhow::Result<Samples> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}", listener.local_addr()?);
    let (note, mut notes) = mpsc::unbounded_channel();
    let agent = tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let asked = Instant::now();
            if answer(stream).await.is_err() || note.send((asked, Instant::now())).is_err() {
                return;
            }
        }
    });
    let node = |place: usize| {
        let on: Vec<String> = if place == 0 { Vec::new() } else { vec![format!("n{}", place - 1)] };
        json!({ "id": format!("n{place}"), "agent": url, "depends_on": on })
    };
    let flow = json!({ "nodes": (0..length).map(node).collect::<Vec<Value>>() }).to_string();
    let run = client.start_run(&flow).await?;
    let mut samples = Samples::default();
    let (_, mut answered) = notes.recv().await.context("the agent ended")?;
    for _ in 1..length {
        let (asked, done) = notes.recv().await.context("the agent ended")?;
        samples.push(asked.saturating_duration_since(answered));
        answered = done;
    }
    agent.abort();
    let mut events = client.run_events(&run, 0).await?;
    while events.next().await?.is_some() {}
    ensure!(client.run_state(&run).await?["status"] == "completed", "the chain did not complete");
    Ok(samples)
}

async fn answer(mut stream: TcpStream) -> anyhow::Result<()> {
    stream.set_nodelay(true)?;
    let (read, mut write) = stream.split();
    let mut reader = BufReader::new(read);
    let mut length = 0;
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).await?;
        if line.trim().is_empty() {
            break;
        }
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse()?;
        }
    }
    reader.read_exact(&mut vec![0; length]).await?;
    let body = r#"{"success": true, "output": "done"}"#;
    let head = format!("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n", body.len());
    write.write_all(format!("{head}{body}").as_bytes()).await?;
    Ok(())
}
