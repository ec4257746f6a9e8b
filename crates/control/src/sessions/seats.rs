//! One seat for each owner that has a sandbox or waits for one: who may make it, and which it is.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use isopod_wire::SandboxId;

use super::owner::Owner;
use crate::store::TeamId;

/// All seats.
#[derive(Debug, Default)]
pub(super) struct Seats {
    /// Entries go when nobody uses them and no sandbox is held; the lock is held for a few instructions.
    seats: Mutex<HashMap<(TeamId, Owner), Arc<Seat>>>,
}

/// Where one owner's callers meet.
#[derive(Debug, Default)]
pub(super) struct Seat {
    /// Held by whoever makes, replaces or removes the sandbox.
    pub(super) alone: tokio::sync::Mutex<()>,
    /// Grows with each cleanup; a call that waited through one must not make a sandbox afterwards.
    disposals: AtomicU64,
    /// Written by whoever is alone; read by everyone.
    held: Mutex<Option<Held>>,
}

/// The sandbox that an owner has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Held {
    pub(super) sandbox: SandboxId,
    pub(super) restarts: u32,
}

impl Seats {
    pub(super) fn seat(&self, team: &TeamId, owner: &Owner) -> Arc<Seat> {
        let mut seats = self.seats.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(seats.entry((team.clone(), owner.clone())).or_default())
    }

    /// Called by whoever is about to drop a seat that holds nothing.
    pub(super) fn forget(&self, team: &TeamId, owner: &Owner, seat: Arc<Seat>) {
        let mut seats = self.seats.lock().unwrap_or_else(PoisonError::into_inner);
        // Two are the map's and ours: nobody else uses it.
        if seat.held().is_none() && Arc::strong_count(&seat) <= 2 {
            seats.remove(&(team.clone(), owner.clone()));
        }
    }
}

impl Seat {
    pub(super) fn held(&self) -> Option<Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn hold(&self, held: Option<Held>) {
        *self.held.lock().unwrap_or_else(PoisonError::into_inner) = held;
    }

    pub(super) fn disposals(&self) -> u64 {
        self.disposals.load(Ordering::Acquire)
    }

    pub(super) fn dispose(&self) {
        self.disposals.fetch_add(1, Ordering::AcqRel);
    }
}
