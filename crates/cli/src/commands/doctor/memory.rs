//! Whether the memory of sandboxes can be saved: processes are saved in one sandbox and go on in a copy.

use isopod_node::{Node, check_criu};
use isopod_wire::node::NodeApi as _;

use super::Finding;
use crate::commands::node_config::find_criu;

const WHAT: &str = "memory";
const HINT: &str = "without CRIU, pauses stay in RAM, and snapshots have only files: see docs/snapshots.md";

/// Whether there is a program for it.
pub(super) fn program() -> Finding {
    match find_criu().and_then(|path| check_criu(&path).map(|()| path)) {
        Ok(path) => Finding::ok(WHAT, format!("pauses to disk, snapshots and forks, with {}", path.display())),
        Err(reason) => Finding::warn(WHAT, reason, HINT),
    }
}

/// Tries it. `None` if there is no program for it.
pub(super) async fn try_saving(node: &Node) -> Option<Finding> {
    if node.no_memory_snapshots().await.is_some() {
        return None;
    }
    let name = "saved memory";
    Some(match node.try_memory().await {
        Ok(()) => Finding::ok(name, "a process was saved, and went on in a copy of its sandbox"),
        Err(reason) => Finding::warn(name, reason, HINT),
    })
}
