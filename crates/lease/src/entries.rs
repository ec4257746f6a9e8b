//! One entry for each name in use: where its callers synchronize, and the sandbox that is remembered for it.

use std::collections::HashMap;
use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use isopod_wire::SandboxId;

use super::LeaseName;

/// All leases of a server.
#[derive(Clone, Debug, Default)]
pub struct Leases {
    /// An entry is removed when no caller uses it and it remembers nothing. The lock is held for a few instructions.
    entries: Arc<Mutex<HashMap<LeaseName, Arc<Entry>>>>,
}

/// A caller's use of an entry, until this is dropped.
#[derive(Debug)]
pub(super) struct EntryGuard {
    leases: Leases,
    name: LeaseName,
    entry: Option<Arc<Entry>>,
}

#[derive(Debug, Default)]
pub(super) struct Entry {
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
    pub(super) fn entry(&self, name: LeaseName) -> EntryGuard {
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = Arc::clone(entries.entry(name.clone()).or_default());
        EntryGuard { leases: self.clone(), name, entry: Some(entry) }
    }

    #[cfg(test)]
    pub(super) fn entries_in_use(&self) -> usize {
        self.entries.lock().unwrap().len()
    }
}

impl Deref for EntryGuard {
    type Target = Entry;

    fn deref(&self) -> &Entry {
        self.entry.as_ref().expect("the entry is only taken in drop")
    }
}

impl Drop for EntryGuard {
    fn drop(&mut self) {
        let mut entries = self.leases.entries.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(entry) = self.entry.take() else { return };
        // A count of two means that only the map and this caller use the entry. Our reference is dropped while the map
        // is locked, so that the last caller sees an accurate count.
        let is_unused = entry.remembered().is_none() && Arc::strong_count(&entry) <= 2;
        drop(entry);
        if is_unused {
            entries.remove(&self.name);
        }
    }
}

impl Entry {
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
