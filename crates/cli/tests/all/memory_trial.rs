//! The trial of CRIU by which a node finds out whether memory can be saved on its host.
//!
//! One needs the CRIU that `cargo xtask setup` builds. Where that is not possible, it says so and passes; CI has it.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use crate::common::has_criu;
use crate::memory::{executions, until};

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use isopod_node::{Node, NodeConfig, PoolSize, StateRoot};
use isopod_testkit::{StateDir, spec};
use isopod_wire::SnapshotId;
use isopod_wire::node::{NodeApi as _, NodeError, SnapshotKind};

const BINARY: &str = env!("CARGO_BIN_EXE_isopod");

/// A program of our version that fails at all else, as CRIU does on a kernel that lacks something.
fn broken_criu(directory: &Path) -> PathBuf {
    let path = directory.join("criu");
    fs::write(&path, "#!/bin/sh\n[ \"$1\" = --version ] && echo 'Version: 4.2 isopod' && exit\nexit 1\n").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path
}

/// A node that prepares what it needs, so that it tries this too.
async fn open(state: &StateDir, criu: Result<PathBuf, String>) -> Node {
    let config = NodeConfig { prepare: vec!["base".to_owned()], criu, ..state.node_config(PoolSize::NONE) };
    Node::open(StateRoot::open(state.path()).unwrap(), config).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_whose_criu_fails_says_that_memory_cannot_be_saved_before_anybody_asks() {
    let (state, place) = (StateDir::new(BINARY), tempfile::tempdir().unwrap());
    let node = open(&state, Ok(broken_criu(place.path()))).await;
    let reason = until("the trial has failed", async || node.no_memory_snapshots().await).await;
    for words in ["CRIU does not work on this host", "isopod doctor"] {
        assert!(reason.contains(words), "{reason}");
    }
    let incarnation = node.create(spec()).await.unwrap();
    let refused = node.snapshot(&incarnation, &SnapshotId::from_random([7; 20]), SnapshotKind::Memory).await;
    assert!(matches!(&refused, Err(NodeError::NoMemory { reason: why, .. }) if *why == reason), "{refused:?}");
    assert_eq!(node.list().await.len(), 1, "nobody sees what the trial creates");
    node.kill(&incarnation).await.unwrap();
    assert!(node.try_memory().await.is_err());
    until("nothing of the trial is left", async || executions(&state).is_empty().then_some(())).await;
    node.close().await;
    state.assert_nothing_left();
}

#[tokio::test(flavor = "multi_thread")]
async fn where_criu_works_the_trial_succeeds_and_leaves_nothing() {
    if !has_criu() {
        return;
    }
    let state = StateDir::new(BINARY);
    let node = open(&state, isopod_testkit::criu()).await;
    node.try_memory().await.unwrap();
    assert!(node.snapshots().await.is_empty() && node.list().await.is_empty());
    assert_eq!(node.no_memory_snapshots().await, None);
    // Also the one in the background, if it has not begun.
    node.close().await;
    assert!(executions(&state).is_empty());
    state.assert_nothing_left();
}
