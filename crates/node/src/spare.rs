//! Networks of ended sandboxes that were never used, for the next ones.
//!
//! Making a network namespace with its interface and removing it again is a fifth of what a sandbox costs, and most
//! sandboxes never send a packet. Only what is as new is kept (see [`crate::network::Witness`]); the slot, and with it the
//! id range, stays claimed all the time. A claim without a record is the business of whoever holds it here.

use std::collections::{BTreeSet, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::network::Witness;
use crate::slot::Slot;

/// The network of one sandbox.
#[derive(Debug)]
pub(crate) struct SandboxNetwork {
    pub(crate) netns: OwnedFd,
    /// `None` for an adopted sandbox, of which nobody can say what it did before.
    pub(crate) witness: Option<Witness>,
}

/// A slot that is claimed and connected, and that nobody uses.
#[derive(Debug)]
pub(crate) struct Spare {
    pub(crate) slot: Slot,
    /// The words that claim it.
    pub(crate) claim: String,
    pub(crate) network: SandboxNetwork,
}

/// The spares of a process. Without room, which is how it begins, none are kept.
#[derive(Debug, Default)]
pub(crate) struct Spares {
    kept: Mutex<VecDeque<Spare>>,
    room: AtomicUsize,
}

impl Spares {
    /// Keeps at most so many from now on.
    pub(crate) fn make_room(&self, most: usize) {
        self.room.store(most, Ordering::Relaxed);
    }

    /// Gives it back when there is no room.
    pub(crate) fn keep(&self, spare: Spare) -> Result<(), Spare> {
        let mut kept = self.kept();
        if kept.len() >= self.room.load(Ordering::Relaxed) {
            return Err(spare);
        }
        kept.push_back(spare);
        Ok(())
    }

    pub(crate) fn has_room(&self) -> bool {
        self.kept().len() < self.room.load(Ordering::Relaxed)
    }

    /// The one that has waited longest.
    pub(crate) fn take(&self) -> Option<Spare> {
        self.kept().pop_front()
    }

    /// The slots of all.
    pub(crate) fn slots(&self) -> BTreeSet<Slot> {
        self.kept().iter().map(|spare| spare.slot).collect()
    }

    fn kept(&self) -> MutexGuard<'_, VecDeque<Spare>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
