//! The cache of build steps: one small file per step, `.steps/<key>` next to the layers, which names the layer.
//!
//! A key includes the build's scope, which is its team unless the operator shares build results. Layers of public
//! images are shared by all. Layers that needed a team's credentials belong to the team.
//!
//! An entry whose layer is gone is ignored. Concurrent builds take turns at a step, so the second one finds the first
//! one's result.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::sync::{OwnedMutexGuard, OwnedSemaphorePermit, Semaphore};

use crate::template::Layer;

const DIRECTORY: &str = ".steps";

/// The result of a step.
#[derive(Clone, Debug)]
pub(super) enum Found {
    /// It changed no file.
    Nothing,
    /// A layer and its size.
    Layer(Arc<Layer>, u64),
}

/// The cached steps of all builds on these layers.
#[derive(Clone, Debug)]
pub(super) struct Cache {
    templates: PathBuf,
}

impl Cache {
    pub(super) fn new(templates: &Path) -> Self {
        Self { templates: templates.to_owned() }
    }

    pub(super) fn find(&self, key: &str) -> Option<Found> {
        let text = fs::read_to_string(self.path(key)).ok()?;
        if text == "-" {
            return Some(Found::Nothing);
        }
        let (id, bytes) = text.split_once(' ')?;
        let layer = Layer::open(&self.templates, id).ok()?;
        Some(Found::Layer(Arc::new(layer), bytes.parse().ok()?))
    }

    pub(super) fn store(&self, key: &str, found: &Found) -> io::Result<()> {
        let text = match found {
            Found::Nothing => "-".to_owned(),
            Found::Layer(layer, bytes) => format!("{} {bytes}", layer.id()),
        };
        fs::create_dir_all(self.templates.join(DIRECTORY))?;
        // Write atomically, because the server may be killed at any moment.
        let temporary = self.path(&format!("{key}.{}", std::process::id()));
        fs::write(&temporary, text)?;
        fs::rename(&temporary, self.path(key))
    }

    fn path(&self, key: &str) -> PathBuf {
        self.templates.join(DIRECTORY).join(key)
    }
}

/// Serialises equal steps of concurrent builds, and limits how many layers are unpacked at once.
#[derive(Debug)]
pub(super) struct BuildLocks {
    /// One permit per core. More archives at once would only use memory.
    unpackers: Arc<Semaphore>,
    /// By key. Unused entries are dropped on the next call.
    steps: Mutex<HashMap<String, Weak<tokio::sync::Mutex<()>>>>,
}

impl Default for BuildLocks {
    fn default() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Self { unpackers: Arc::new(Semaphore::new(cores)), steps: Mutex::default() }
    }
}

impl BuildLocks {
    /// Waits for a permit to unpack a layer. All builds together have one per core.
    pub(super) async fn unpacking(&self) -> OwnedSemaphorePermit {
        Arc::clone(&self.unpackers).acquire_owned().await.expect("the semaphore is never closed")
    }

    /// Waits until no other build executes this step.
    pub(super) async fn take(&self, key: &str) -> OwnedMutexGuard<()> {
        let step = {
            let mut steps = self.steps.lock().unwrap_or_else(PoisonError::into_inner);
            steps.retain(|_, step| step.strong_count() > 0);
            match steps.get(key).and_then(Weak::upgrade) {
                Some(step) => step,
                None => {
                    let step = Arc::default();
                    steps.insert(key.to_owned(), Arc::downgrade(&step));
                    step
                }
            }
        };
        step.lock_owned().await
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn no_more_layers_are_unpacked_at_once_than_there_are_cores() {
        let locks = BuildLocks::default();
        let mut places = Vec::new();
        for _ in 0..std::thread::available_parallelism().unwrap().get() {
            places.push(locks.unpacking().await);
        }
        assert!(tokio::time::timeout(Duration::ZERO, locks.unpacking()).await.is_err());
        places.pop();
        assert!(tokio::time::timeout(Duration::ZERO, locks.unpacking()).await.is_ok());
    }
}
