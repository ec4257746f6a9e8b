//! A node to measure, in its own state directory.

use std::path::Path;

use isopod_client::guest::Guest;
use isopod_node::{Node, PoolSize};
use isopod_testkit::{Residue, StateDir};
use isopod_wire::node::{Incarnation, NodeApi};

/// The node and its state directory.
#[derive(Debug)]
pub(crate) struct Stage {
    pub(crate) node: Node,
    state: StateDir,
}

impl Stage {
    pub(crate) async fn open(binary: &Path, pool: PoolSize) -> Self {
        let state = StateDir::new(binary);
        Self { node: state.open_node(pool).await, state }
    }

    /// The guest of a sandbox, as `user`.
    pub(crate) fn guest(&self, incarnation: &Incarnation) -> Guest {
        let socket = self.node.guest_socket(incarnation).expect("the sandbox was made a moment ago");
        Guest::over_unix(socket).with_user("user")
    }

    /// Ends everything. What is left is printed, but is not an error, so that measured numbers are not lost: another
    /// program that copies the host's mounts can hold the disk for as long as it runs.
    pub(crate) async fn close(self) -> anyhow::Result<()> {
        let Self { node, state } = self;
        for sandbox in node.list().await {
            node.kill(&sandbox.incarnation).await?;
        }
        node.close().await;
        abandon_if_held(state);
        Ok(())
    }
}

/// Removes a state directory, or leaves it if something still holds it.
pub(crate) fn abandon_if_held(state: StateDir) {
    let residue = Residue::of(state.path());
    if !residue.is_empty() {
        println!("left behind, because something holds it: {residue:?}\n");
        // Its destructor would insist on removing everything.
        std::mem::forget(state);
    }
}
