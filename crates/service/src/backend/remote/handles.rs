//! The tokens of sandboxes that were used before, so that not every command requests them.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use isopod_client::Sandbox;
use isopod_wire::SandboxId;

/// More than any server runs. At this number everything is dropped, including sandboxes that ended by themselves.
const MAX_KNOWN: usize = 10_000;

#[derive(Debug, Default)]
pub(super) struct Handles {
    /// Written when a sandbox is first used or is gone. Locked only briefly.
    known: Mutex<HashMap<SandboxId, Sandbox>>,
}

impl Handles {
    pub(super) fn get(&self, id: &SandboxId) -> Option<Sandbox> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).get(id).cloned()
    }

    pub(super) fn keep(&self, handle: Sandbox) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= MAX_KNOWN {
            known.clear();
        }
        known.insert(handle.id().clone(), handle);
    }

    pub(super) fn forget(&self, id: &SandboxId) {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).remove(id);
    }
}
