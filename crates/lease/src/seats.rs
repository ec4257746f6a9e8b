//! One seat for each name in use: the place where its callers synchronize, and the sandbox that is remembered for it.

use std::collections::HashMap;
use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use isopod_wire::SandboxId;

use super::LeaseName;

/// All leases of a server.
#[derive(Clone, Debug, Default)]
pub struct Leases {
    /// A seat is removed when no caller uses it and it remembers nothing. The lock is held for a few instructions.
    seats: Arc<Mutex<HashMap<LeaseName, Arc<Seat>>>>,
}

/// A caller's use of a seat, until this is dropped.
#[derive(Debug)]
pub(super) struct Seated {
    leases: Leases,
    name: LeaseName,
    seat: Option<Arc<Seat>>,
}

#[derive(Debug, Default)]
pub(super) struct Seat {
    /// Held by the caller that creates, replaces or removes the sandbox.
    pub(super) alone: tokio::sync::Mutex<()>,
    /// Incremented at each ending. A call that waited through one must not create a sandbox afterwards.
    endings: AtomicU64,
    /// Written only by the caller that holds `alone`; anyone may read it.
    remembered: Mutex<Option<Remembered>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Remembered {
    pub(super) sandbox: SandboxId,
    pub(super) restarts: u32,
}

impl Leases {
    pub(super) fn seat(&self, name: LeaseName) -> Seated {
        let mut seats = self.seats.lock().unwrap_or_else(PoisonError::into_inner);
        let seat = Arc::clone(seats.entry(name.clone()).or_default());
        Seated { leases: self.clone(), name, seat: Some(seat) }
    }

    #[cfg(test)]
    pub(super) fn seats_in_use(&self) -> usize {
        self.seats.lock().unwrap().len()
    }
}

impl Deref for Seated {
    type Target = Seat;

    fn deref(&self) -> &Seat {
        self.seat.as_ref().expect("the seat is only taken in drop")
    }
}

impl Drop for Seated {
    fn drop(&mut self) {
        let mut seats = self.leases.seats.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(seat) = self.seat.take() else { return };
        // A count of two means that only the map and this caller use the seat. Our reference is dropped while the map
        // is locked, so that the last caller sees an accurate count.
        let is_unused = seat.remembered().is_none() && Arc::strong_count(&seat) <= 2;
        drop(seat);
        if is_unused {
            seats.remove(&self.name);
        }
    }
}

impl Seat {
    pub(super) fn remembered(&self) -> Option<Remembered> {
        self.remembered.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn remember(&self, sandbox: Option<Remembered>) {
        *self.remembered.lock().unwrap_or_else(PoisonError::into_inner) = sandbox;
    }

    pub(super) fn endings(&self) -> u64 {
        self.endings.load(Ordering::Acquire)
    }

    pub(super) fn count_ending(&self) {
        self.endings.fetch_add(1, Ordering::AcqRel);
    }
}
