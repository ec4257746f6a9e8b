//! A backend that fails at each step: the caller gets an error that says where, and nothing is left.

use std::sync::Arc;

use isopod_isolation::fake::{FakeBackend, Fault};
use isopod_node::{Node, PoolSize, StateRoot};
use isopod_testkit::{StateDir, spec};
use isopod_wire::node::{CreateError, NodeApi};

const BINARY: &str = env!("CARGO_BIN_EXE_isopod");

#[tokio::test(flavor = "multi_thread")]
async fn a_failure_at_each_step_is_told_and_undone() {
    let state = StateDir::new(BINARY);
    for (fault, expected) in [
        (Fault::Prepare, "could not prepare a sandbox"),
        (Fault::Wait, "could not build the root"),
        (Fault::Launch, "could not clone the first process"),
        (Fault::DiesAtOnce, ""),
        (Fault::DiesWhenReady, ""),
    ] {
        let root = StateRoot::open(state.path()).unwrap();
        let backend = Arc::new(FakeBackend::failing_at(fault));
        let node = Node::open_with(root, state.node_config(PoolSize::NONE), Some(backend)).await.unwrap();
        let Err(CreateError::Failed(error)) = node.create(spec()).await else { panic!("{fault:?} made a sandbox") };
        assert!(error.to_string().contains(expected), "{fault:?}: {error}");
        assert!(node.list().await.is_empty());
        node.close().await;
        state.assert_nothing_left();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pool_that_cannot_be_filled_does_not_keep_the_host_busy_or_full() {
    let state = StateDir::new(BINARY);
    let root = StateRoot::open(state.path()).unwrap();
    let backend = Arc::new(FakeBackend::failing_at(Fault::Launch));
    let size = PoolSize { ready: 2, prepared: 1 };
    let node = Node::open_with(root, state.node_config(size), Some(backend)).await.unwrap();
    for _ in 0..5 {
        assert!(node.create(spec()).await.is_err());
    }
    node.close().await;
    state.assert_nothing_left();
}
