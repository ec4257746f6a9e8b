//! Measures the sandbox service beside the SDK's path into the same sandbox, and under a mixed load.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use isopod_client::guest::{Guest, StartProcess};
use isopod_client::{Client, ClientConfig, NewSandbox};
use isopod_testkit::StateDir;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;

use crate::report::{Bound, Report, Table};
use crate::samples::{Samples, millis};
use crate::scale::Scale;
use crate::server::{KEY, start_ours};
use crate::stage::abandon_if_held;

const RATE: u32 = 500;
const CLIENTS: usize = 8;

pub(crate) async fn measure(binary: &Path, scale: &Scale, report: &mut Report) -> anyhow::Result<()> {
    let state = StateDir::new(binary);
    {
        let server = start_ours(binary, &state, &["--prepare", "none"])?;
        let url = format!("http://{}", server.address);
        let config =
            ClientConfig { api_url: url.clone(), api_key: KEY.to_owned(), sandbox_url: Some(url), domain: None };
        let sandbox = Client::new(config)?.create(NewSandbox::new("base").timeout(Duration::from_secs(3600))).await?;
        let path = format!("/api/v1/sandboxes/{}/execute", sandbox.id());
        report.add(&executes(&server.address, sandbox.guest(), &path, scale).await?);
        report.add(&mixed(&server.address, &path, scale.load).await?);
        sandbox.kill().await?;
    }
    abandon_if_held(state);
    Ok(())
}

/// One after the other, then in parallel.
async fn executes(address: &str, guest: &Guest, path: &str, scale: &Scale) -> anyhow::Result<Table> {
    let (mut direct, mut service) = (Samples::default(), Samples::default());
    let mut connection = Connection::open(address).await?;
    // In turns, so that both see the same machine.
    for _ in 0..scale.sdk_calls {
        let start = Instant::now();
        guest.run(StartProcess::new("true")).await?;
        direct.push(start.elapsed());
        let start = Instant::now();
        connection.expect("POST", path, Some(&json!({ "argv": ["true"] }))).await?;
        service.push(start.elapsed());
    }
    let added = service.median().as_secs_f64() * 1e3 - direct.median().as_secs_f64() * 1e3;
    let calls = scale.sdk_calls * 2;
    let direct_rate = direct_rate(guest, calls).await?;
    let service_rate = service_rate(address, path, calls).await?;
    let title = "Execute through the service and by the SDK's path, in the same sandbox";
    let mut table = Table::new(title, &["measure", "SDK path", "service", "target"]);
    let (left, right) = (millis(direct.median()), millis(service.median()));
    table.row(&["p50, ms", &left, &right, &format!("added {added:.2}: {}", Bound::AtMost(2.0).verdict(added))]);
    table.row(&["p99, ms", &millis(direct.percentile(99)), &millis(service.percentile(99)), ""]);
    let share = service_rate / direct_rate;
    let verdict = format!("{share:.2}×: {}", Bound::AtLeast(0.9).verdict(share));
    table.row(&["per second, 8 at once", &format!("{direct_rate:.0}"), &format!("{service_rate:.0}"), &verdict]);
    table.note("The service writes an audit line and a row of history for each, before it answers.");
    Ok(table)
}

async fn direct_rate(guest: &Guest, calls: usize) -> anyhow::Result<f64> {
    let start = Instant::now();
    let workers = (0..CLIENTS).map(|_| async {
        for _ in 0..calls / CLIENTS {
            guest.run(StartProcess::new("true")).await?;
        }
        anyhow::Ok(())
    });
    futures::future::try_join_all(workers).await?;
    Ok(calls as f64 / start.elapsed().as_secs_f64())
}

async fn service_rate(address: &str, path: &str, calls: usize) -> anyhow::Result<f64> {
    let start = Instant::now();
    let workers = (0..CLIENTS).map(|_| async {
        let mut connection = Connection::open(address).await?;
        for _ in 0..calls / CLIENTS {
            connection.expect("POST", path, Some(&json!({ "argv": ["true"] }))).await?;
        }
        anyhow::Ok(())
    });
    futures::future::try_join_all(workers).await?;
    Ok(calls as f64 / start.elapsed().as_secs_f64())
}

/// Sends five hundred requests per second, on a schedule that does not wait for responses. One in ten is an execute.
async fn mixed(address: &str, execute: &str, length: Duration) -> anyhow::Result<Table> {
    let total = RATE as usize * usize::try_from(length.as_secs())?;
    let (next, start) = (Arc::new(AtomicUsize::new(0)), Instant::now());
    let workers = (0..CLIENTS * 4).map(|_| {
        let (next, execute, address) = (Arc::clone(&next), execute.to_owned(), address.to_owned());
        tokio::spawn(async move { work(&address, &execute, &next, total, start).await })
    });
    let mut samples = Vec::new();
    let mut errors = 0;
    for worker in futures::future::try_join_all(workers).await? {
        let (mut own, failed) = worker?;
        samples.append(&mut own);
        errors += failed;
    }
    let samples: Samples = samples.into_iter().collect();
    let rate = samples.len() as f64 / start.elapsed().as_secs_f64();
    let title = format!("{RATE} requests a second of mixed verbs for {} s", length.as_secs());
    let mut table = Table::new(&title, &["measure", "value", "target"]);
    let p99 = samples.percentile(99).as_secs_f64() * 1e3;
    table.row(&["answered per second", &format!("{rate:.0}"), &Bound::AtLeast(f64::from(RATE) * 0.98).verdict(rate)]);
    table.row(&["p50, ms", &millis(samples.median()), ""]);
    table.row(&["p99, ms", &format!("{p99:.1}"), &Bound::AtMost(100.0).verdict(p99)]);
    table.row(&["errors", &errors.to_string(), &Bound::AtMost(0.0).verdict(f64::from(errors))]);
    table.note("A time is counted from when the request was due, not from when it could be sent.");
    Ok(table)
}

async fn work(
    address: &str,
    execute: &str,
    next: &AtomicUsize,
    total: usize,
    start: Instant,
) -> anyhow::Result<(Vec<Duration>, u32)> {
    let mut connection = Connection::open(address).await?;
    let (mut samples, mut errors) = (Vec::new(), 0);
    loop {
        let number = next.fetch_add(1, Ordering::Relaxed);
        if number >= total {
            return Ok((samples, errors));
        }
        let due = start + Duration::from_secs(1) * u32::try_from(number)? / RATE;
        tokio::time::sleep_until(due.into()).await;
        let sandbox = execute.trim_end_matches("/execute");
        let answer = match number % 10 {
            0 => connection.call("POST", execute, Some(&json!({ "argv": ["true"] }))).await?,
            1..=4 => connection.call("GET", sandbox, None).await?,
            5 | 6 => connection.call("GET", "/api/v1/sandboxes", None).await?,
            7 => connection.call("GET", "/api/v1/commands?limit=20", None).await?,
            8 => connection.call("POST", "/api/v1/tasks", Some(&json!({ "title": "bench" }))).await?,
            _ => connection.call("GET", "/api/v1/tasks?limit=20", None).await?,
        };
        samples.push(due.elapsed());
        errors += u32::from(answer >= 400);
    }
}

/// A kept-alive connection with a minimal HTTP/1.1 client.
struct Connection {
    stream: BufReader<TcpStream>,
}

impl Connection {
    async fn open(address: &str) -> anyhow::Result<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Self { stream: BufReader::new(stream) })
    }

    async fn expect(&mut self, method: &str, path: &str, body: Option<&Value>) -> anyhow::Result<()> {
        match self.call(method, path, body).await? {
            200..300 => Ok(()),
            status => bail!("{method} {path} answered {status}"),
        }
    }

    async fn call(&mut self, method: &str, path: &str, body: Option<&Value>) -> anyhow::Result<u16> {
        let body = body.map(ToString::to_string).unwrap_or_default();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: localhost\r\nx-api-key: {KEY}\r\ncontent-type: application/json\r\n\
             content-length: {}\r\n\r\n{body}",
            body.len()
        );
        self.stream.write_all(head.as_bytes()).await?;
        let (mut status, mut length, mut line) = (None, 0, String::new());
        loop {
            line.clear();
            self.stream.read_line(&mut line).await?;
            let text = line.trim_end().to_ascii_lowercase();
            if status.is_none() {
                status = Some(text.split(' ').nth(1).context("no status")?.parse()?);
            } else if let Some(value) = text.strip_prefix("content-length:") {
                length = value.trim().parse()?;
            } else if text.is_empty() {
                break;
            }
        }
        let mut rest = vec![0; length];
        self.stream.read_exact(&mut rest).await?;
        status.context("no status")
    }
}
