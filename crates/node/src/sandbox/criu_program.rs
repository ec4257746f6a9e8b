//! The program that saves and restores memory on this node.

use std::sync::{Arc, PoisonError, RwLock};

use isopod_checkpoint::Criu;

/// The program, or why there is none, with what to do about it.
#[derive(Debug)]
pub(super) struct CriuProgram(RwLock<Result<Arc<Criu>, String>>);

impl CriuProgram {
    pub(super) fn new(found: Result<Arc<Criu>, String>) -> Self {
        Self(RwLock::new(found))
    }

    pub(super) fn get(&self) -> Result<Arc<Criu>, String> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn is_usable(&self) -> bool {
        self.0.read().unwrap_or_else(PoisonError::into_inner).is_ok()
    }

    /// Uses it no more, because it does not work on this host.
    pub(super) fn give_up(&self, reason: String) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Err(reason);
    }
}
