//! Tracks how much space an execution's files take, without visiting all of them at every write.
//!
//! Writes through the API are counted as they arrive. Writes of sandboxes are found by measuring from time to time.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use isopod_store::ExecutionName;

/// The limits for stored files.
#[derive(Clone, Copy, Debug)]
pub struct FileLimits {
    /// The maximum size of one file in bytes.
    pub max_file_size: u64,
    /// The maximum total size of an execution's files in bytes.
    pub execution_quota: u64,
    /// An execution is removed after it was unused for this long. `None` keeps it forever.
    pub execution_retention: Option<Duration>,
}

impl Default for FileLimits {
    fn default() -> Self {
        Self { max_file_size: 100 << 20, execution_quota: 10 << 30, execution_retention: None }
    }
}

/// How long a measurement is valid.
const VALID_FOR: Duration = Duration::from_secs(20);
/// The number of executions to remember. Others are measured again.
const MAX_METERS: usize = 10_000;

#[derive(Debug, Default)]
pub(crate) struct Meters(Mutex<HashMap<ExecutionName, Arc<Meter>>>);

/// The usage of one execution.
#[derive(Debug, Default)]
pub(crate) struct Meter {
    used: AtomicU64,
    /// When `used` was last measured. Locked during the measurement, so that only one task measures.
    measured: Mutex<Option<Instant>>,
    /// Locked while a file and its metadata change together.
    commit: Mutex<()>,
}

impl Meters {
    pub(crate) fn of(&self, execution: &ExecutionName) -> Arc<Meter> {
        let mut meters = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if meters.len() >= MAX_METERS {
            meters.retain(|_, meter| Arc::strong_count(meter) > 1);
        }
        Arc::clone(meters.entry(execution.clone()).or_default())
    }

    pub(crate) fn forget(&self, execution: &ExecutionName) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(execution);
    }
}

impl Meter {
    /// Ensures that the usage is known, by calling `measure` if necessary.
    pub(crate) fn ensure_measured<E>(&self, measure: impl FnOnce() -> Result<u64, E>) -> Result<(), E> {
        let mut measured = self.measured.lock().unwrap_or_else(PoisonError::into_inner);
        if measured.is_none_or(|at| at.elapsed() > VALID_FOR) {
            self.used.store(measure()?, Ordering::Relaxed);
            *measured = Some(Instant::now());
        }
        Ok(())
    }

    /// Counts additional bytes. Returns false if that would exceed `quota`.
    pub(crate) fn take(&self, bytes: u64, quota: u64) -> bool {
        let grown = |used: u64| used.checked_add(bytes).filter(|used| *used <= quota);
        self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, grown).is_ok()
    }

    pub(crate) fn give_back(&self, bytes: u64) {
        let less = |used: u64| Some(used.saturating_sub(bytes));
        // The closure always returns a value.
        let _ = self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }

    pub(crate) fn lock_commit(&self) -> MutexGuard<'_, ()> {
        self.commit.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
