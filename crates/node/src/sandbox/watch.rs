//! Notices that a sandbox has ended by itself.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};
use std::time::Duration;

use isopod_wire::node::{EndReason, NodeEvent};

use super::{Sandbox, Sandboxes};
use crate::boot::ProcessIdentity;
use crate::disposal::{Remains, dispose};
use crate::record::Record;
use crate::workspace::KnownConnections;

/// How often a sandbox with mounts is checked.
const CHECK_EVERY: Duration = Duration::from_secs(1);

impl Sandboxes {
    /// Waits in the background for the end of the first process.
    pub(super) fn watch(
        self: &Arc<Self>,
        sandbox: Arc<Sandbox>,
        pidfd: Arc<OwnedFd>,
        blockable: Option<ProcessIdentity>,
    ) {
        let exit = match self.exits.of(pidfd) {
            Ok(exit) => exit,
            Err(error) => {
                tracing::error!(incarnation = %sandbox.incarnation, %error, "cannot watch the first process");
                return;
            }
        };
        let sandboxes = Arc::downgrade(self);
        tokio::spawn(async move {
            let has_ended = tokio::select! {
                // The sender is dropped when the node is closed.
                exit = exit => exit.is_ok(),
                connections = exiting(blockable) => {
                    connections.abort();
                    true
                }
            };
            if has_ended {
                ended(&sandboxes, &sandbox).await;
            }
        });
    }
}

/// The first process of a sandbox whose exit can be blocked. A process that waits for a FUSE file system to reply stays
/// until the reply comes, and until then the pidfd of the first process does not show that it was killed.
pub(super) fn blockable_exit(record: &Record) -> Option<ProcessIdentity> {
    let can_block = record.spec.as_ref().is_some_and(|spec| !spec.mounts.is_empty() || spec.features.fuse);
    record.init.clone().filter(|_| can_block)
}

/// Waits until the process is killed. Returns the connections that may block its exit, which were recorded before.
async fn exiting(init: Option<ProcessIdentity>) -> KnownConnections {
    let Some(init) = init else { return std::future::pending().await };
    let mut known = KnownConnections::default();
    while !init.is_exiting() {
        known.refresh(init.pid);
        tokio::time::sleep(CHECK_EVERY).await;
    }
    known
}

async fn ended(sandboxes: &Weak<Sandboxes>, sandbox: &Arc<Sandbox>) {
    let mut inner = sandbox.inner.lock().await;
    let Some(sandboxes) = sandboxes.upgrade() else { return };
    if inner.ending || inner.processes.is_none() {
        return;
    }
    inner.ending = true;
    let Some(processes) = inner.processes.take() else { return };
    let reason = match processes.cgroup.out_of_memory_kills() {
        Ok(kills) if kills > 0 => EndReason::OutOfMemory,
        _ => EndReason::GuestDied,
    };
    let provisioner = Arc::clone(&sandboxes.provisioner);
    let remains = Remains::of(&inner.record, &provisioner.home);
    drop(processes);
    let _ = tokio::task::spawn_blocking(move || dispose(&provisioner.host, &remains)).await;
    sandboxes.forget(&sandbox.incarnation);
    tracing::info!(incarnation = %sandbox.incarnation, ?reason, "sandbox ended by itself");
    // It is not an error if nobody listens.
    let _ = sandboxes.events.send(NodeEvent::Ended { incarnation: sandbox.incarnation.clone(), reason });
}
