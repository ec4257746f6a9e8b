//! Recycles the networks of ended sandboxes that never used them.
//!
//! Creating and removing a network namespace with its interface is a fifth of the cost of a sandbox, and most sandboxes
//! never send a packet. Only networks that are as good as new are kept (see [`isopod_network::TrafficCounters`]). The
//! slot, and with it the id range, stays claimed all the time. A claim without a record belongs to the process that
//! keeps the network.

use std::collections::{BTreeSet, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use isopod_network::TrafficCounters;

use crate::slot::Slot;

/// The network of one sandbox.
#[derive(Debug)]
pub(crate) struct SandboxNetwork {
    pub(crate) netns: OwnedFd,
    /// `None` for an adopted sandbox, because its earlier traffic is unknown.
    pub(crate) counters: Option<TrafficCounters>,
}

/// A slot that is claimed and connected, but not used by a sandbox.
#[derive(Debug)]
pub(crate) struct RecycledNetwork {
    pub(crate) slot: Slot,
    /// The text that claims it.
    pub(crate) claim: String,
    pub(crate) network: SandboxNetwork,
}

/// The networks that a process keeps for its next sandboxes. The initial capacity is zero.
#[derive(Debug, Default)]
pub(crate) struct RecycledNetworks {
    kept: Mutex<VecDeque<RecycledNetwork>>,
    capacity: AtomicUsize,
}

impl RecycledNetworks {
    /// Sets how many are kept.
    pub(crate) fn set_capacity(&self, max: usize) {
        self.capacity.store(max, Ordering::Relaxed);
    }

    /// Returns the network if there is no room for it.
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

    /// Takes the oldest one.
    pub(crate) fn take(&self) -> Option<RecycledNetwork> {
        self.kept().pop_front()
    }

    /// The slots of all kept networks.
    pub(crate) fn slots(&self) -> BTreeSet<Slot> {
        self.kept().iter().map(|recycled| recycled.slot).collect()
    }

    fn kept(&self) -> MutexGuard<'_, VecDeque<RecycledNetwork>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
