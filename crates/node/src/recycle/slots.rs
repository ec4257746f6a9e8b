//! Releases slots that are no longer used.
//!
//! Removing a slot from the network costs the kernel tens of milliseconds, and about the same for one as for a hundred.
//! So slots are collected and removed together. Only then can they be claimed again.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use isopod_network::Network;

use crate::slot::Slot;

/// How long slots are collected. Each removal makes the kernel search its whole connection table, which takes tens of
/// milliseconds of CPU time even for one slot. The host has enough slots to wait.
const GATHER: Duration = Duration::from_millis(500);

/// The slots and the thread that removes them from the network.
#[derive(Debug)]
pub(crate) struct SlotReleaser {
    shared: Arc<Shared>,
    worker: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    network: Arc<Network>,
    queue: Mutex<Queue>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Queue {
    /// With the texts that claim them.
    slots: BTreeMap<Slot, String>,
    /// Slots that are being removed right now.
    leaving: BTreeSet<Slot>,
    closed: bool,
}

impl SlotReleaser {
    pub(crate) fn new(network: Arc<Network>) -> std::io::Result<Self> {
        let shared = Arc::new(Shared { network, queue: Mutex::default(), changed: Condvar::new() });
        let worker = Arc::clone(&shared);
        let worker = std::thread::Builder::new().name("slot-releaser".to_owned()).spawn(move || worker.run())?;
        Ok(Self { shared, worker: Some(worker) })
    }

    /// Queues a slot for release.
    pub(crate) fn release(&self, slot: Slot, claim: String) {
        self.shared.queue().slots.insert(slot, claim);
        self.shared.changed.notify_all();
    }

    /// Slots that are not released yet.
    pub(crate) fn slots(&self) -> BTreeSet<Slot> {
        let queue = self.shared.queue();
        queue.slots.keys().chain(&queue.leaving).copied().collect()
    }
}

impl Drop for SlotReleaser {
    /// Waits until all slots are released.
    fn drop(&mut self) {
        self.shared.queue().closed = true;
        self.shared.changed.notify_all();
        if let Some(worker) = self.worker.take() {
            // After a panic the claims stay, and the next sweep finds them.
            let _ = worker.join();
        }
    }
}

impl Shared {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) {
        loop {
            let mut queue = self.queue();
            while queue.slots.is_empty() && !queue.closed {
                queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
            }
            if queue.slots.is_empty() {
                return;
            }
            if !queue.closed {
                let gathering = self.changed.wait_timeout_while(queue, GATHER, |queue| !queue.closed);
                queue = gathering.unwrap_or_else(PoisonError::into_inner).0;
            }
            let slots = std::mem::take(&mut queue.slots);
            queue.leaving = slots.keys().copied().collect();
            drop(queue);
            self.release_all(&slots);
            self.queue().leaving.clear();
        }
    }

    fn release_all(&self, slots: &BTreeMap<Slot, String>) {
        // If two callers released the same slot, the first one has already freed it, and it may belong to someone else
        // by now.
        let slots: BTreeMap<_, _> = slots.iter().filter(|(slot, claim)| slot.is_claimed_with(claim)).collect();
        let numbers = slots.keys().map(|slot| slot.on_network()).collect();
        if let Err(error) = self.network.unplumb_all(&numbers) {
            // They stay claimed, and the next sweep tries again.
            tracing::warn!(error = &error as &dyn std::error::Error, "could not remove slots from the network");
            return;
        }
        slots.iter().for_each(|(slot, claim)| slot.release(claim));
    }
}
