//! The sandboxes that are being resumed at the moment.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

/// Sandboxes whose rows say that they run a little before they do. The reconciler leaves those rows alone.
#[derive(Debug, Default)]
pub(crate) struct Resuming {
    /// The number of resume calls by id.
    ids: Mutex<HashMap<String, usize>>,
}

/// Marks a sandbox as being resumed until it is dropped.
#[derive(Debug)]
pub(crate) struct ResumeGuard<'r> {
    of: &'r Resuming,
    id: String,
}

impl Resuming {
    pub(crate) fn begin(&self, id: &str) -> ResumeGuard<'_> {
        *self.lock().entry(id.to_owned()).or_default() += 1;
        ResumeGuard { of: self, id: id.to_owned() }
    }

    pub(crate) fn has(&self, id: &str) -> bool {
        self.lock().contains_key(id)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<String, usize>> {
        self.ids.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for ResumeGuard<'_> {
    fn drop(&mut self) {
        let mut ids = self.of.lock();
        match ids.get_mut(&self.id) {
            Some(count) if *count > 1 => *count -= 1,
            _ => drop(ids.remove(&self.id)),
        }
    }
}
