//! Who uses which saved memory, which is not packed meanwhile.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// Saved memory that is in use.
#[derive(Debug, Default)]
pub struct InUse {
    unpacking: tokio::sync::Mutex<()>,
}

impl InUse {
    /// Whoever has the turn unpacks it. The others find it unpacked.
    pub(super) async fn turn(&self) -> tokio::sync::MutexGuard<'_, ()> {
        self.unpacking.lock().await
    }
}

#[derive(Debug, Default)]
pub(super) struct Users(Mutex<HashMap<PathBuf, Weak<InUse>>>);

impl Users {
    pub(super) fn add(&self, memory: &Path) -> Arc<InUse> {
        let mut table = self.table();
        table.retain(|_, user| user.strong_count() > 0);
        if let Some(user) = table.get(memory).and_then(Weak::upgrade) {
            return user;
        }
        let user = Arc::default();
        table.insert(memory.to_owned(), Arc::downgrade(&user));
        user
    }

    pub(super) fn is_used(&self, memory: &Path) -> bool {
        used_in(&self.table(), memory)
    }

    /// Nobody begins to use it meanwhile.
    pub(super) fn unless_used<T>(&self, memory: &Path, task: impl FnOnce() -> T) -> Option<T> {
        let table = self.table();
        (!used_in(&table, memory)).then(task)
    }

    fn table(&self) -> MutexGuard<'_, HashMap<PathBuf, Weak<InUse>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn used_in(table: &HashMap<PathBuf, Weak<InUse>>, memory: &Path) -> bool {
    table.get(memory).is_some_and(|user| user.strong_count() > 0)
}
