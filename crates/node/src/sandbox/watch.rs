//! Noticing that a sandbox has ended by itself.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};
use std::time::Duration;

use isopod_wire::node::{EndReason, NodeEvent};

use super::{Fleet, Sandbox};
use crate::boot::ProcessIdentity;
use crate::disposal::{Remains, dispose};
use crate::record::Record;
use crate::workspace::KnownConnections;

/// How often a sandbox that can be held up is looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);

impl Fleet {
    /// Waits for the end of the first process, in the background.
    pub(super) fn watch(
        self: &Arc<Self>,
        sandbox: Arc<Sandbox>,
        pidfd: Arc<OwnedFd>,
        held_up: Option<ProcessIdentity>,
    ) {
        let exit = match self.exits.of(pidfd) {
            Ok(exit) => exit,
            Err(error) => {
                tracing::error!(incarnation = %sandbox.incarnation, %error, "cannot watch the first process");
                return;
            }
        };
        let fleet = Arc::downgrade(self);
        tokio::spawn(async move {
            let has_ended = tokio::select! {
                // The sender goes without a word when the node is closed.
                exit = exit => exit.is_ok(),
                held_up_by = exiting(held_up) => {
                    held_up_by.abort();
                    true
                }
            };
            if has_ended {
                ended(&fleet, &sandbox).await;
            }
        });
    }
}

/// The first process of a sandbox whose end can be held up: whoever in there waits for an answer of the workspace stays until
/// it comes, and until then the handle of the first process does not say that it was killed.
pub(super) fn can_be_held_up(record: &Record) -> Option<ProcessIdentity> {
    let has_mounts = record.spec.as_ref().is_some_and(|spec| !spec.mounts.is_empty());
    record.init.clone().filter(|_| has_mounts)
}

/// Waits until it is killed. What it may then be held up by is known from before.
async fn exiting(init: Option<ProcessIdentity>) -> KnownConnections {
    let Some(init) = init else { return std::future::pending().await };
    let mut known = KnownConnections::default();
    while !init.is_exiting() {
        known.refresh(init.pid);
        tokio::time::sleep(LOOK_EVERY).await;
    }
    known
}

async fn ended(fleet: &Weak<Fleet>, sandbox: &Arc<Sandbox>) {
    let mut life = sandbox.life.lock().await;
    let Some(fleet) = fleet.upgrade() else { return };
    if life.ending || life.processes.is_none() {
        return;
    }
    life.ending = true;
    let Some(processes) = life.processes.take() else { return };
    let reason = match processes.cgroup.out_of_memory_kills() {
        Ok(kills) if kills > 0 => EndReason::OutOfMemory,
        _ => EndReason::GuestDied,
    };
    let provisioner = Arc::clone(&fleet.provisioner);
    let remains = Remains::of(&life.record, &provisioner.home);
    drop(processes);
    let _ = tokio::task::spawn_blocking(move || dispose(&provisioner.host, &remains)).await;
    fleet.forget(&sandbox.incarnation);
    tracing::info!(incarnation = %sandbox.incarnation, ?reason, "sandbox ended by itself");
    // Without a reader nobody wants to know.
    let _ = fleet.events.send(NodeEvent::Ended { incarnation: sandbox.incarnation.clone(), reason });
}
