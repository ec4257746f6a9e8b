//! A daemon for experiments and for the tests. It mounts a bucket and executes commands from standard input.
//!
//! `storaged STATE BUCKET MOUNT[=EXECUTION[:QUOTA-BYTES]]...` where BUCKET is a directory, or `s3:NAME` with the usual
//! `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`, `AWS_SESSION_TOKEN`, `AWS_REGION` and `AWS_ENDPOINT_URL`. It prints
//! `ready`, replies to `settle` with `settled` and to `status` with what is not uploaded, and ends when standard input
//! ends. With `serve=EXECUTION` or `take-over=EXECUTION` instead of a mount, standard input is the FUSE descriptor to
//! serve.

#![expect(clippy::print_stdout, reason = "it replies to the process that started it")]

use std::io::BufRead as _;
use std::os::fd::AsFd as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use isopod_storage::{
    Credentials, Daemon, DirectoryStore, ObjectStore, Quota, S3Settings, S3Store, Settings, Subtree, View,
};
use tracing_subscriber::Layer as _;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    run(&std::env::args().skip(1).collect::<Vec<_>>()).await
}

pub(crate) async fn run(arguments: &[String]) -> anyhow::Result<()> {
    let asked = std::env::var("RUST_LOG").ok().and_then(|levels| levels.parse::<Targets>().ok());
    let targets = asked.unwrap_or_else(|| Targets::new().with_default(LevelFilter::ERROR));
    let log = tracing_subscriber::fmt::layer().with_writer(std::io::stderr).with_filter(targets);
    tracing_subscriber::registry().with(log).init();
    let [state, bucket, mounts @ ..] = arguments else { bail!("usage: storaged STATE BUCKET MOUNT[=EXECUTION]...") };
    let mut settings = Settings::new(state);
    if let Some(seconds) = number("STORAGED_DEADLINE") {
        settings.deadline = Duration::from_secs(seconds);
    }
    let mut daemon = Daemon::start(open_store(bucket).await?, settings)?;
    for mount in mounts {
        let (path, view) = parse_mount(mount)?;
        if let "serve" | "take-over" = path {
            let fd = std::io::stdin().as_fd().try_clone_to_owned()?;
            let session = match path {
                "serve" => daemon.serve(fd, &view).await?,
                _ => daemon.take_over(fd, &view).await?,
            };
            println!("ready");
            while session.is_alive() {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            return Ok(());
        }
        daemon.mount(Path::new(path), &view).await.with_context(|| format!("mount {path}"))?;
    }
    println!("ready");
    let mut lines = lines();
    while let Some(line) = lines.recv().await {
        match line.as_str() {
            "settle" => {
                daemon.sync().settle().await;
                println!("settled");
            }
            "status" => println!("{:?}", daemon.vfs().sync_status()),
            other => println!("unknown: {other}"),
        }
    }
    daemon.stop().await;
    Ok(())
}

fn parse_mount(text: &str) -> anyhow::Result<(&str, View)> {
    let Some((path, rest)) = text.split_once('=') else { return Ok((text, View::default())) };
    let (execution, quota) = rest.split_once(':').unwrap_or((rest, ""));
    let bytes = if quota.is_empty() { None } else { Some(quota.parse().context("the quota")?) };
    Ok((path, View { subtree: Some(Subtree::execution(execution.parse()?)), quota: Quota { bytes, files: None } }))
}

async fn open_store(bucket: &str) -> anyhow::Result<Arc<dyn ObjectStore>> {
    let Some(name) = bucket.strip_prefix("s3:") else {
        return Ok(Arc::new(DirectoryStore::open(Path::new(bucket))?));
    };
    let text = |name: &str| std::env::var(name).with_context(|| format!("{name} is not set"));
    let credentials = Credentials {
        access_key: text("AWS_ACCESS_KEY_ID")?,
        secret_key: text("AWS_SECRET_ACCESS_KEY")?,
        session_token: text("AWS_SESSION_TOKEN").ok(),
    };
    let region = text("AWS_REGION").unwrap_or_else(|_| "us-east-1".to_owned());
    let mut settings = S3Settings::new(name, &region, credentials);
    settings.endpoint = text("AWS_ENDPOINT_URL").ok();
    if let Some(seconds) = number("STORAGED_REQUEST_TIMEOUT") {
        settings.request_timeout = Duration::from_secs(seconds);
    }
    let store = S3Store::new(settings)?;
    store.check().await?;
    Ok(Arc::new(store))
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

fn lines() -> tokio::sync::mpsc::UnboundedReceiver<String> {
    let (sender, receiver) = tokio::sync::mpsc::unbounded_channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    receiver
}
