//! Networks of ended sandboxes that were never used, for the next ones.
//!
//! Making a network namespace with its interface and removing it again is a fifth of what a sandbox costs, and most
//! sandboxes never send a packet. Only what is as new is kept (see [`isopod_network::Witness`]); the slot, and with it the
//! id range, stays claimed all the time. A claim without a record is the business of whoever holds it here.

use std::collections::{BTreeSet, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use isopod_network::Witness;

use crate::slot::Slot;

/// The network of one sandbox.
#[derive(Debug)]
pub(crate) struct SandboxNetwork {
    pub(crate) netns: OwnedFd,
    /// `None` for an adopted sandbox, of which nobody can say what it did before.
    pub(crate) witness: Option<Witness>,
}

/// A slot that is claimed and connected, and that no sandbox uses.
#[derive(Debug)]
pub(crate) struct RecycledNetwork {
    pub(crate) slot: Slot,
    /// The text that claims it.
    pub(crate) claim: String,
    pub(crate) network: SandboxNetwork,
}

/// The networks that a process keeps for its next sandboxes. Without capacity, which is how it begins, none are kept.
#[derive(Debug, Default)]
pub(crate) struct RecycledNetworks {
    kept: Mutex<VecDeque<RecycledNetwork>>,
    capacity: AtomicUsize,
}

impl RecycledNetworks {
    /// Keeps at most so many from now on.
    pub(crate) fn set_capacity(&self, max: usize) {
        self.capacity.store(max, Ordering::Relaxed);
    }

    /// Gives it back when there is no room.
    pub(crate) fn put(&self, recycled: RecycledNetwork) -> Result<(), RecycledNetwork> {
        let mut kept = self.kept();
        if kept.len() >= self.capacity.load(Ordering::Relaxed) {
            return Err(recycled);
        }
        kept.push_back(recycled);
        Ok(())
    }

    pub(crate) fn has_room(&self) -> bool {
        self.kept().len() < self.capacity.load(Ordering::Relaxed)
    }

    /// The one that has waited longest.
    pub(crate) fn take(&self) -> Option<RecycledNetwork> {
        self.kept().pop_front()
    }

    /// The slots of all.
    pub(crate) fn slots(&self) -> BTreeSet<Slot> {
        self.kept().iter().map(|recycled| recycled.slot).collect()
    }

    fn kept(&self) -> MutexGuard<'_, VecDeque<RecycledNetwork>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
