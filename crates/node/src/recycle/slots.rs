//! Slots that are not used any more, on their way back.
//!
//! Taking a slot off the network costs the kernel tens of milliseconds, mostly the same for one as for a hundred. So they
//! are gathered and taken off together, and only then may somebody else claim them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use isopod_network::Network;

use crate::slot::Slot;

/// How long slots are gathered. The kernel looks through its whole table of connections each time, tens of milliseconds
/// of CPU however few there are; the host has slots enough to wait.
const GATHER: Duration = Duration::from_millis(500);

/// The slots and the thread that takes them off.
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
    /// Those that are being taken off now.
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

    /// Gives a slot back, soon.
    pub(crate) fn release(&self, slot: Slot, claim: String) {
        self.shared.queue().slots.insert(slot, claim);
        self.shared.changed.notify_all();
    }

    /// Those that are not given back yet.
    pub(crate) fn slots(&self) -> BTreeSet<Slot> {
        let queue = self.shared.queue();
        queue.slots.keys().chain(&queue.leaving).copied().collect()
    }
}

impl Drop for SlotReleaser {
    /// Waits until all are given back.
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
            self.give_back(&slots);
            self.queue().leaving.clear();
        }
    }

    fn give_back(&self, slots: &BTreeMap<Slot, String>) {
        // A slot that two found at once was given back by the first, and may be somebody else's by now.
        let slots: BTreeMap<_, _> = slots.iter().filter(|(slot, claim)| slot.is_claimed_with(claim)).collect();
        let numbers = slots.keys().map(|slot| slot.on_network()).collect();
        if let Err(error) = self.network.unplumb_all(&numbers) {
            // They stay claimed, and the next sweep tries again.
            tracing::warn!(error = &error as &dyn std::error::Error, "could not take slots off the network");
            return;
        }
        slots.iter().for_each(|(slot, claim)| slot.release(claim));
    }
}
