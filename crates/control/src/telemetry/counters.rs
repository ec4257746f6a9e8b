//! Counters, incremented where things happen.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Upper bounds of the create-time histogram, in milliseconds.
pub(super) const CREATE_BOUNDS_MS: [u64; 12] = [1, 2, 5, 10, 20, 50, 100, 250, 500, 1000, 5000, 30_000];

#[derive(Debug, Default)]
pub struct Counters {
    /// By kind of request and status.
    pub(super) requests: Mutex<BTreeMap<(Kind, u16), u64>>,
    /// By reason.
    pub(super) ended: Mutex<BTreeMap<&'static str, u64>>,
    pub(super) create_failures: AtomicU64,
    pub(super) creates: AtomicU64,
    pub(super) create_micros: AtomicU64,
    /// Creates that took no longer than the bound with the same index.
    pub(super) create_within: [AtomicU64; CREATE_BOUNDS_MS.len()],
}

/// The part of the server that answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    Api,
    Edge,
}

impl Kind {
    pub(super) fn text(self) -> &'static str {
        match self {
            Self::Api => "api",
            Self::Edge => "edge",
        }
    }
}

impl Counters {
    pub(crate) fn answered(&self, kind: Kind, status: u16) {
        let mut requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        *requests.entry((kind, status)).or_default() += 1;
    }

    pub(crate) fn ended(&self, reason: &'static str) {
        *self.ended.lock().unwrap_or_else(PoisonError::into_inner).entry(reason).or_default() += 1;
    }

    pub(crate) fn created(&self, made: bool, took: Duration) {
        if !made {
            self.create_failures.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        self.creates.fetch_add(1, Ordering::Relaxed);
        self.create_micros.fetch_add(micros, Ordering::Relaxed);
        for (bound, count) in CREATE_BOUNDS_MS.iter().zip(&self.create_within) {
            if micros <= bound * 1000 {
                count.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}
