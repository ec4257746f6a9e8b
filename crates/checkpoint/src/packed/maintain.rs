//! Packs what rests, in the background.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

use rustix::process::setpriority_process;

use super::pack::size_of_new_files;
use super::unpack::free_space;
use super::{Pack, PackedMemory, is_packed};

/// What packing leaves free on the disk, besides room for the chunks.
const SPACE_LEFT: u64 = 1 << 30;
const LOWEST_PRIORITY: i32 = 19;

/// The saved memory of a node.
#[derive(Debug)]
pub struct SavedMemories {
    /// What may be packed.
    pub packable: Vec<PathBuf>,
    /// All there is. Some of it may be gone.
    pub all: Vec<PathBuf>,
}

impl PackedMemory {
    /// Packs what nobody has used for a while, and removes chunks that nothing names any more. Errors are logged. Only one
    /// call at a time. `owned` keeps others from the memories until nothing of this runs any more.
    pub async fn maintain(self: Arc<Self>, memories: SavedMemories, after: Duration, owned: impl Send + 'static) {
        let (done, wait) = tokio::sync::oneshot::channel();
        // A thread of its own, because its priority can't be raised again. If the process ends first, nothing is lost.
        let started = std::thread::Builder::new().name("pack-memory".to_owned()).spawn(move || {
            // Without it, the work is done all the same.
            let _ = setpriority_process(None, LOWEST_PRIORITY);
            memories
                .packable
                .iter()
                .filter(|memory| has_rested(memory, after))
                .for_each(|memory| self.try_pack(memory));
            self.sweep_if_wanted(&memories.all);
            drop(owned);
            // Nobody waits if the node is closed.
            let _ = done.send(());
        });
        match started {
            Ok(_) => {
                let _ = wait.await;
            }
            Err(error) => tracing::warn!(%error, "could not start to pack saved memory"),
        }
    }

    fn try_pack(&self, memory: &Path) {
        let packed =
            has_room(memory).and_then(|has_room| if has_room { self.pack(memory) } else { Ok(Pack::AlreadyPacked) });
        match packed {
            Ok(Pack::Packed) => tracing::debug!(memory = %memory.display(), "packed saved memory"),
            Ok(Pack::AlreadyPacked) => {}
            // Chunks of what was not finished may be left.
            Ok(Pack::NotNow) => self.want_sweep(),
            Err(error) => {
                self.want_sweep();
                // It was resumed or removed meanwhile.
                if error.kind() != io::ErrorKind::NotFound {
                    tracing::warn!(memory = %memory.display(), %error, "could not pack saved memory");
                }
            }
        }
    }

    /// Looks at all lists only if one of them is gone, or something was not finished.
    fn sweep_if_wanted(&self, all: &[PathBuf]) {
        if self.replace_known(all.iter().filter(|memory| is_packed(memory)).cloned().collect()) {
            self.want_sweep();
        }
        if self.is_closing() || !self.wants_sweep.swap(false, Ordering::Relaxed) {
            return;
        }
        if let Err(error) = self.sweep(all) {
            self.want_sweep();
            tracing::warn!(%error, "could not remove what is left of packed memory");
        }
    }
}

/// By the time of its last change, which is that of its last use.
fn has_rested(memory: &Path, after: Duration) -> bool {
    let used = fs::metadata(memory).and_then(|metadata| metadata.modified());
    used.is_ok_and(|used| SystemTime::now().duration_since(used).is_ok_and(|age| age >= after))
}

/// Until the files are removed, the chunks take space beside them.
fn has_room(memory: &Path) -> io::Result<bool> {
    Ok(free_space(memory)? >= size_of_new_files(memory)?.saturating_add(SPACE_LEFT))
}
