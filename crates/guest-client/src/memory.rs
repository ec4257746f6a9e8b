//! Memory that the collected output of many calls may take together.
//!
//! Each call has a limit of its own, but a sandbox can cause many calls at once. A [`MemoryBudget`] is what they share, and
//! a [`Reservation`] is the part that one call has.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The first bytes of each reservation aren't counted, so that small output is kept even if the budget is used up.
const FREE: usize = 256 << 10;

/// A number of bytes that several calls share. Clones share it too.
#[derive(Clone, Debug)]
pub struct MemoryBudget(Arc<AtomicUsize>);

impl MemoryBudget {
    /// A budget of this many bytes.
    pub fn new(bytes: usize) -> Self {
        Self(Arc::new(AtomicUsize::new(bytes)))
    }

    /// A budget that is never used up.
    pub fn unlimited() -> Self {
        Self::new(usize::MAX)
    }

    /// An empty reservation.
    pub fn reserve(&self) -> Reservation {
        Reservation { budget: self.clone(), bytes: 0 }
    }

    fn take(&self, bytes: usize) -> bool {
        let less = |left: usize| left.checked_sub(bytes);
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok()
    }

    fn give_back(&self, bytes: usize) {
        self.0.fetch_add(bytes, Ordering::Relaxed);
    }
}

/// The bytes that one call has reserved. They return to the budget when this is dropped.
#[derive(Debug)]
pub struct Reservation {
    budget: MemoryBudget,
    bytes: usize,
}

impl Reservation {
    /// Reserves more. Returns false, and leaves the reservation as it is, if the budget has less left.
    #[must_use]
    pub fn grow(&mut self, more: usize) -> bool {
        self.bytes.checked_add(more).is_some_and(|bytes| self.resize(bytes))
    }

    /// Sets the size. Returns false, and leaves the reservation as it is, if the budget has less left.
    #[must_use]
    pub fn resize(&mut self, bytes: usize) -> bool {
        let (now, then) = (counted(self.bytes), counted(bytes));
        if then > now && !self.budget.take(then - now) {
            return false;
        }
        self.budget.give_back(now.saturating_sub(then));
        self.bytes = bytes;
        true
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.budget.give_back(counted(self.bytes));
    }
}

fn counted(bytes: usize) -> usize {
    bytes.saturating_sub(FREE)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn reservations_share_the_budget_and_the_first_bytes_are_free() {
        let budget = MemoryBudget::new(100);
        let (mut first, mut second) = (budget.reserve(), budget.reserve());
        assert!(first.grow(FREE + 60) && second.grow(FREE + 40));
        assert!(!second.grow(1), "the budget is used up");
        assert!(budget.reserve().grow(FREE), "small output is always kept");
        drop(first);
        assert!(second.grow(60) && !second.grow(1));
    }

    proptest! {
        #[test]
        fn nothing_is_lost_or_counted_twice(sizes in proptest::collection::vec(0usize..4 * FREE, 0..20)) {
            let budget = MemoryBudget::new(2 * FREE);
            let mut reservation = budget.reserve();
            for size in sizes {
                let granted = reservation.resize(size);
                prop_assert_eq!(granted, counted(size) <= 2 * FREE);
                prop_assert_eq!(budget.0.load(Ordering::Relaxed), 2 * FREE - counted(reservation.bytes));
            }
            drop(reservation);
            prop_assert_eq!(budget.0.load(Ordering::Relaxed), 2 * FREE);
        }
    }
}
