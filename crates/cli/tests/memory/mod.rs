//! What tests of saved memory share.

use std::path::{Path, PathBuf};
use std::time::Duration;

use isopod_client::guest::Guest;
use isopod_client::sandbox::{Client, NewSandbox, Sandbox};
use isopod_testkit::StateDir;
use serde_json::Value;

use crate::common::raw::ask;
use crate::common::{KEY, Server};

/// A server that makes no template by itself.
pub(crate) fn serve(state: &StateDir, options: &[&str]) -> Server {
    Server::start(state.isopod().command(&[&["serve", "--prepare", "none"], options].concat()))
}

pub(crate) async fn create(client: &Client, template: &str) -> Sandbox {
    client.create(NewSandbox::new(template).timeout(Duration::from_secs(300))).await.unwrap()
}

/// Starts a sandbox from its files, as the official SDKs ask for it.
pub(crate) async fn connect_without_memory(server: &Server, sandbox: &Sandbox) -> Sandbox {
    let headers = [("x-api-key", KEY), ("content-type", "application/json")];
    let path = format!("/v2/sandboxes/{}/connect", sandbox.id());
    let rebooted = ask(server.port(), "POST", &path, &headers, br#"{"timeout": 300, "memory": false}"#).await;
    assert_eq!(rebooted.status, 201, "{rebooted:?}");
    server.client().connect(sandbox.id(), None).await.unwrap()
}

pub(crate) fn user_of(sandbox: &Sandbox) -> Guest {
    sandbox.guest().clone().with_user("user")
}

pub(crate) async fn until<T>(what: &str, mut found: impl AsyncFnMut() -> Option<T>) -> T {
    for _ in 0..600 {
        if let Some(found) = found().await {
            return found;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("{what}: not within 30 seconds");
}

/// The directory of all executions below a state directory.
pub(crate) fn boxes(state: &StateDir) -> PathBuf {
    state.path().join("homes/serve/boxes")
}

/// The directories of executions below a state directory.
pub(crate) fn executions(state: &StateDir) -> Vec<PathBuf> {
    executions_in(state.path())
}

pub(crate) fn executions_in(state: &Path) -> Vec<PathBuf> {
    let boxes = std::fs::read_dir(state.join("homes/serve/boxes")).unwrap();
    boxes.filter_map(|entry| Some(entry.ok()?.path())).collect()
}

/// The record of an execution. Null if there is none.
pub(crate) fn record(execution: &Path) -> Value {
    let text = std::fs::read(execution.join("record.json")).unwrap_or_default();
    serde_json::from_slice(&text).unwrap_or_default()
}

/// The record of a sandbox. Those of its snapshots name it too.
pub(crate) fn record_of(state: &StateDir, sandbox: &str) -> Option<Value> {
    let records = executions(state).into_iter().map(|execution| record(&execution));
    let mut own = records.filter(|record| record["spec"]["sandbox"] == sandbox && record["snapshot"].is_null());
    own.next()
}

/// How many Python programs the sandboxes of a state directory run, by their cgroups.
pub(crate) fn python_programs(state: &StateDir) -> usize {
    let tag = std::fs::read_to_string(state.path().join("tag")).unwrap();
    let group = format!("isopod-{}", tag.trim());
    let is_ours = |entry: &std::fs::DirEntry| {
        let cgroup = std::fs::read_to_string(entry.path().join("cgroup")).unwrap_or_default();
        // Below the group of the state directory, and of an execution that is not in the pool.
        cgroup.contains(&format!("/{group}/"))
            && std::fs::read(entry.path().join("cmdline")).is_ok_and(|words| words.starts_with(b"python3"))
    };
    std::fs::read_dir("/proc").unwrap().filter_map(Result::ok).filter(is_ours).count()
}
