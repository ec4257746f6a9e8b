//! How much an execution's files take, without going through all of them at every write.
//!
//! What is written through the API is counted as it comes; what sandboxes write is found by measuring now and then.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use isopod_store::ExecutionName;

/// What may be stored.
#[derive(Clone, Copy, Debug)]
pub struct FileLimits {
    /// Bytes of one file.
    pub max_file_size: u64,
    /// Bytes of all files of one execution.
    pub execution_quota: u64,
    /// An execution that was not used for so long is removed; none means never.
    pub execution_retention: Option<Duration>,
}

impl Default for FileLimits {
    fn default() -> Self {
        Self { max_file_size: 100 << 20, execution_quota: 10 << 30, execution_retention: None }
    }
}

/// A measurement holds for so long.
const GOOD_FOR: Duration = Duration::from_secs(20);
/// So many executions are remembered; the others are measured anew.
const MAX_METERS: usize = 10_000;

#[derive(Debug, Default)]
pub(super) struct Meters(Mutex<HashMap<ExecutionName, Arc<Meter>>>);

/// One execution's use.
#[derive(Debug, Default)]
pub(crate) struct Meter {
    used: AtomicU64,
    /// When `used` was last measured. Held while that is done, so that it is done once.
    measured: Mutex<Option<Instant>>,
    /// Held while a file and what is noted about it change together.
    commit: Mutex<()>,
}

impl Meters {
    pub(super) fn of(&self, execution: &ExecutionName) -> Arc<Meter> {
        let mut meters = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if meters.len() >= MAX_METERS {
            meters.retain(|_, meter| Arc::strong_count(meter) > 1);
        }
        Arc::clone(meters.entry(execution.clone()).or_default())
    }

    pub(super) fn forget(&self, execution: &ExecutionName) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(execution);
    }
}

impl Meter {
    /// Sees to it that the use is known, by `measure` if need be.
    pub(super) fn ensure_measured<E>(&self, measure: impl FnOnce() -> Result<u64, E>) -> Result<(), E> {
        let mut measured = self.measured.lock().unwrap_or_else(PoisonError::into_inner);
        if measured.is_none_or(|at| at.elapsed() > GOOD_FOR) {
            self.used.store(measure()?, Ordering::Relaxed);
            *measured = Some(Instant::now());
        }
        Ok(())
    }

    /// Counts so many bytes more, unless that is more than `quota`.
    pub(super) fn take(&self, bytes: u64, quota: u64) -> bool {
        let grown = |used: u64| used.checked_add(bytes).filter(|used| *used <= quota);
        self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, grown).is_ok()
    }

    pub(super) fn give_back(&self, bytes: u64) {
        let less = |used: u64| Some(used.saturating_sub(bytes));
        // The closure always gives a value.
        let _ = self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }

    pub(super) fn commit_alone(&self) -> MutexGuard<'_, ()> {
        self.commit.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
