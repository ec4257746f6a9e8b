//! Noticing that a sandbox has ended by itself.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};

use isopod_wire::node::{EndReason, NodeEvent};

use super::{Fleet, Sandbox};
use crate::disposal::{Remains, dispose};

impl Fleet {
    /// Waits for the end of the first process, in the background.
    pub(super) fn watch(self: &Arc<Self>, sandbox: Arc<Sandbox>, pidfd: Arc<OwnedFd>) {
        let exit = match self.exits.of(pidfd) {
            Ok(exit) => exit,
            Err(error) => {
                tracing::error!(incarnation = %sandbox.incarnation, %error, "cannot watch the first process");
                return;
            }
        };
        let fleet = Arc::downgrade(self);
        tokio::spawn(async move {
            // The sender goes without a word when the node is closed.
            if exit.await.is_ok() {
                ended(&fleet, &sandbox).await;
            }
        });
    }
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
    let workshop = Arc::clone(&fleet.workshop);
    let remains = Remains::of(&life.record, &workshop.home);
    drop(processes);
    let _ = tokio::task::spawn_blocking(move || dispose(&workshop.host, &remains)).await;
    fleet.forget(&sandbox.incarnation);
    tracing::info!(incarnation = %sandbox.incarnation, ?reason, "sandbox ended by itself");
    // Without a reader nobody wants to know.
    let _ = fleet.events.send(NodeEvent::Ended { incarnation: sandbox.incarnation.clone(), reason });
}
