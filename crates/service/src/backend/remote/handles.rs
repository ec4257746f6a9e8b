//! The tokens of sandboxes that were used before, so that not every command asks for them.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use isopod_client::Sandbox;
use isopod_wire::SandboxId;

/// More than any server runs. Sandboxes that ended by themselves are forgotten with the rest then.
const MAX_KNOWN: usize = 10_000;

#[derive(Debug, Default)]
pub(super) struct Handles {
    /// Written when a sandbox is first used or is gone; held for a few instructions.
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
