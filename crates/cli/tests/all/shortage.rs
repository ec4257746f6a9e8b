//! A server that lacks something: descriptors, a port, a launcher that waited. It says so, and nothing is left.

use crate::common;

use std::process::Command;

use common::Server;
use isopod_client::sandbox::{ApiError, NewSandbox};
use isopod_node::PoolSize;
use isopod_testkit::{Platform, StateDir, spec};
use isopod_wire::node::{NodeApi, SandboxSpec};
use isopod_wire::{Bytes, Limits};
use rustix::process::{Pid, Signal, kill_process};

const BINARY: &str = env!("CARGO_BIN_EXE_isopod");

/// `isopod serve` with limits of the shell.
fn serve_with(state: &StateDir, limit: &str) -> Server {
    let mut command = Command::new("sh");
    command.args(["-c", &format!("{limit}; exec \"$0\" \"$@\""), BINARY]);
    command.arg("--state-dir").arg(state.path()).args(["serve", "--pool-ready", "1", "--pool-prepared", "1"]);
    command.env("ISOPOD_PREPARE", "none");
    Server::start(command)
}

fn records(state: &StateDir) -> usize {
    std::fs::read_dir(state.path().join("homes/serve/boxes")).map_or(0, Iterator::count)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_without_descriptors_refuses_with_the_reason_and_leaves_nothing() {
    let state = StateDir::new(BINARY);
    let server = serve_with(&state, "ulimit -n 256");
    let client = server.client();
    let mut made = Vec::new();
    let refused = loop {
        match client.create(NewSandbox::new("base")).await {
            Ok(sandbox) => made.push(sandbox.id().clone()),
            Err(error) => break error,
        }
        assert!(made.len() < 256, "descriptors never run out");
    };
    assert!(
        matches!(&refused, ApiError::Unavailable { message, .. } if message.contains("descriptors")),
        "{refused:?}"
    );
    for _ in 0..5 {
        match client.create(NewSandbox::new("base")).await {
            // The pool has given some of its descriptors back.
            Ok(sandbox) => made.push(sandbox.id().clone()),
            Err(refused) => assert!(matches!(refused, ApiError::Unavailable { .. }), "{refused:?}"),
        }
    }
    // At most one ready and one prepared wait in the pool.
    assert!(records(&state) <= made.len() + 2, "{} records for {} sandboxes", records(&state), made.len());
    for id in &made {
        assert!(client.kill(id).await.unwrap());
    }
    let sandbox = client.create(NewSandbox::new("base")).await.unwrap();
    assert!(client.kill(sandbox.id()).await.unwrap());
    server.stop();
    state.assert_nothing_left();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_raises_its_own_limit_of_descriptors() {
    let state = StateDir::new(BINARY);
    let server = serve_with(&state, "ulimit -Sn 256");
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", server.pid())).unwrap();
    let line = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
    let figures: Vec<&str> = line.split_whitespace().skip(3).take(2).collect();
    assert_eq!(figures[0], figures[1], "{line}");
    server.stop();
    state.assert_nothing_left();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prepared_launcher_that_died_is_passed_over() {
    let size = PoolSize { ready: 0, prepared: 4 };
    let platform = Platform::start_with(BINARY, size).await;
    platform.node.wait_for_pool(size).await;
    let launchers = launchers(platform.state());
    assert!(launchers.len() >= 4, "{launchers:?}");
    for pid in launchers {
        kill_process(pid, Signal::KILL).unwrap();
    }
    // Not the pool's limits, so each takes a prepared one.
    let limits = Limits { memory: Bytes::mib(256), ..Limits::default() };
    for _ in 0..4 {
        platform.node.create(SandboxSpec { limits, ..spec() }).await.unwrap();
    }
    platform.finish().await;
}

/// Processes in the cgroups of this state directory: those of prepared sandboxes, while there are no others.
fn launchers(state: &StateDir) -> Vec<Pid> {
    let tag = std::fs::read_to_string(state.path().join("tag")).unwrap();
    let group = format!("/isopod-{}/", tag.trim());
    let is_ours =
        |pid: &i32| std::fs::read_to_string(format!("/proc/{pid}/cgroup")).is_ok_and(|groups| groups.contains(&group));
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(is_ours).filter_map(Pid::from_raw).collect()
}

#[test]
fn a_start_on_a_port_that_is_taken_leaves_nothing() {
    let state = StateDir::new(BINARY);
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let failed = state.isopod().run(&["serve", "--listen", &address]);
    assert!(failed.code() != 0 && failed.stderr().contains("could not listen on"), "{}", failed.stderr());
    assert_eq!(records(&state), 0);
    state.assert_nothing_left();
}

#[test]
fn a_start_whose_database_cannot_be_opened_leaves_nothing() {
    let state = StateDir::new(BINARY);
    std::fs::create_dir(state.path().join("isopod.db")).unwrap();
    let failed = state.isopod().run(&["serve", "--listen", "127.0.0.1:0"]);
    assert!(failed.code() != 0 && failed.stderr().contains("could not open the database"), "{}", failed.stderr());
    assert_eq!(records(&state), 0);
    state.assert_nothing_left();
}

#[test]
fn a_host_without_disk_limits_says_so_at_start_and_at_the_first_run() {
    let state = StateDir::new(BINARY);
    let without_mkfs = |arguments: &[&str]| {
        let mut command = state.isopod().command(arguments);
        // Areas of an earlier time, which an image would hide.
        std::fs::create_dir_all(state.path().join("disk/areas/older")).unwrap();
        command.env("ISOPOD_LOG", "warn");
        command
    };
    let said = |mut command: Command| String::from_utf8_lossy(&command.output().unwrap().stderr).into_owned();
    // Waits for the sweep of the command before, which would take the area from the next one.
    let settle = || {
        let _ = std::fs::remove_dir(state.path().join("disk/areas/older"));
        state.assert_nothing_left();
    };
    let first = said(without_mkfs(&["run", "--", "true"]));
    assert!(first.contains("cannot be limited"), "{first}");
    settle();
    let second = said(without_mkfs(&["run", "--", "true"]));
    assert!(!second.contains("cannot be limited"), "{second}");
    settle();
    std::fs::create_dir(state.path().join("isopod.db")).unwrap();
    let served = said(without_mkfs(&["serve", "--listen", "127.0.0.1:0"]));
    assert!(served.contains("have no disk limit"), "{served}");
    settle();
}
