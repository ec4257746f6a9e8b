//! Saved memory that nobody has used for a while takes less space: it is cut into chunks, which are compressed, and which all
//! saved memory of a node shares. Two snapshots of one sandbox have most of their chunks in common.
//!
//! ```text
//! memory/                as it was saved     packed
//!   saved.json             description         the same
//!   state.json             the guest's state   the same
//!   images/pages-1.img     pages               –
//!   files                  an archive          –
//!   packed.json            –                   the chunks of each missing file
//! chunks/ab/abcd…        –                   a chunk, by the hash of what is in it
//! ```
//!
//! Before a restore, the files are made again, and they stay until the memory has rested once more. A restore is never behind
//! a pack: what is in use isn't packed.
//!
//! Nothing is lost at any moment. Chunks are on disk before the list that names them, and the list is on disk before the files
//! are removed. Files that were made again may be incomplete after a power cut, so [`PackedMemory::recover`] removes them:
//! whatever has a list can be made from it.

mod chunks;
mod index;
mod maintain;
mod pack;
mod unpack;
mod users;

use std::collections::HashSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use chunks::ChunkStore;
use index::Index;
use users::Users;

pub use maintain::SavedMemories;
use pack::Pack;
pub use users::InUse;

use crate::save::blocking;
use crate::{Doing as _, MemoryError};

/// The packed memory of a node.
#[derive(Debug)]
pub struct PackedMemory {
    chunks: ChunkStore,
    users: Users,
    /// The memory that was packed when somebody looked last.
    known: Mutex<HashSet<PathBuf>>,
    wants_sweep: AtomicBool,
    is_closing: AtomicBool,
}

impl PackedMemory {
    /// Keeps chunks in a directory, which is made when there is something to keep.
    pub fn new(directory: PathBuf) -> Arc<Self> {
        Arc::new(Self {
            chunks: ChunkStore::new(directory),
            users: Users::default(),
            known: Mutex::default(),
            wants_sweep: AtomicBool::new(false),
            is_closing: AtomicBool::new(false),
        })
    }

    /// Makes saved memory usable. It stays so as long as the result exists.
    pub async fn unpack(self: &Arc<Self>, memory: &Path) -> Result<Arc<InUse>, MemoryError> {
        let in_use = self.users.add(memory);
        let turn = in_use.turn().await;
        // Held by the task, because the caller may give up.
        let (packed, memory, held) = (Arc::clone(self), memory.to_owned(), Arc::clone(&in_use));
        let unpacked = blocking(move || {
            let unpacked = unpack::unpack(&packed.chunks, &memory);
            drop(held);
            unpacked
        });
        unpacked.await?.doing("unpack the memory")?;
        drop(turn);
        Ok(in_use)
    }

    /// Packs saved memory, unless it is in use. Call it from one thread at a time, and not while [`Self::sweep`] runs.
    fn pack(&self, memory: &Path) -> io::Result<Pack> {
        pack::pack(&self.chunks, &self.users, memory, &|| !self.is_closing())
    }

    /// Ends what is being packed soon. It is packed another time.
    pub fn close(&self) {
        self.is_closing.store(true, Ordering::Relaxed);
    }

    fn is_closing(&self) -> bool {
        self.is_closing.load(Ordering::Relaxed)
    }

    fn want_sweep(&self) {
        self.wants_sweep.store(true, Ordering::Relaxed);
    }

    /// Removes what a crash may have left incomplete. Call it before anything of `memories`, which is all there is, is used.
    pub fn recover(&self, memories: &[PathBuf]) -> io::Result<()> {
        let remove_files = |memory: &PathBuf| {
            if let Some(index) = Index::read(memory)? {
                pack::put_away(memory, &index)?;
            }
            pack::remove_leftovers(memory)
        };
        let existing = memories.iter().filter(|memory| memory.exists());
        let removed: Vec<io::Result<()>> = existing.map(remove_files).collect();
        removed.into_iter().collect::<io::Result<()>>()?;
        self.replace_known(memories.iter().filter(|memory| is_packed(memory)).cloned().collect());
        self.sweep(memories)
    }

    /// Removes the chunks that no saved memory has. `memories` is all there is.
    fn sweep(&self, memories: &[PathBuf]) -> io::Result<()> {
        if !self.chunks.exist() {
            return Ok(());
        }
        let mut named = HashSet::new();
        for memory in memories {
            // One that cannot be read may name any of them.
            if let Some(index) = Index::read(memory)? {
                named.extend(index.chunks());
            }
        }
        self.chunks.remove_all_but(&named)
    }

    /// Returns whether something that was packed is gone.
    fn replace_known(&self, packed: HashSet<PathBuf>) -> bool {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let is_less = !known.is_subset(&packed);
        *known = packed;
        is_less
    }
}

/// Whether saved memory is packed, or has been and was made again.
fn is_packed(memory: &Path) -> bool {
    index::path_in(memory).exists()
}

#[cfg(test)]
mod tests;
