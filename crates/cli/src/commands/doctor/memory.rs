//! Whether the memory of sandboxes can be saved: a process is saved in one sandbox and goes on in a copy.

use anyhow::{Context, bail};
use isopod_client::guest::{Guest, Signal, StartProcess};
use isopod_node::{Node, check_criu};
use isopod_wire::node::{Incarnation, NodeApi, SandboxSpec};
use isopod_wire::{SandboxId, SnapshotId};

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

/// Tries it in a sandbox. `None` if there is no program for it.
pub(super) async fn try_saving(node: &Node, incarnation: &Incarnation, spec: &SandboxSpec) -> Option<Finding> {
    if node.no_memory_snapshots().await.is_some() {
        return None;
    }
    let name = "saved memory";
    Some(match save_and_restore(node, incarnation, spec).await {
        Ok(()) => Finding::ok(name, "a process was saved, and went on in a copy of its sandbox"),
        Err(error) => Finding::warn(name, format!("{error:#}"), HINT),
    })
}

async fn save_and_restore(node: &Node, incarnation: &Incarnation, spec: &SandboxSpec) -> anyhow::Result<()> {
    let mut random = [0; 20];
    getrandom::fill(&mut random)?;
    let id = SnapshotId::from_random(random);
    let started = guest_of(node, incarnation)?.start(StartProcess::shell("exec sleep 600")).await;
    let process = started.context("could not start a process")?.handle();
    node.snapshot(incarnation, &id, true).await.context("could not save a process")?;
    let copy = SandboxSpec { sandbox: SandboxId::from_random(random), snapshot: Some(id.clone()), ..spec.clone() };
    let restored = restored_pids(node, copy).await;
    node.remove_snapshot(&id).await.context("could not remove a snapshot")?;
    process.signal(Signal::Kill).await.context("could not end a process")?;
    if !restored?.contains(&process.pid()) {
        bail!("a saved process did not come back");
    }
    Ok(())
}

async fn restored_pids(node: &Node, copy: SandboxSpec) -> anyhow::Result<Vec<u32>> {
    let copy = node.create(copy).await.context("could not restore a process")?;
    let found = guest_of(node, &copy)?.list_processes().await;
    node.kill(&copy).await.context("could not remove a sandbox")?;
    Ok(found?.into_iter().map(|process| process.pid).collect())
}

fn guest_of(node: &Node, incarnation: &Incarnation) -> anyhow::Result<Guest> {
    let socket = node.guest_socket(incarnation).context("the sandbox is gone")?;
    Ok(Guest::over_unix(socket).with_user("user"))
}
