//! Packs saved memory that nobody has used for a while.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use isopod_checkpoint::{MEMORY, SavedMemories};
use isopod_wire::node::NodeState;

use super::{Sandbox, Sandboxes};
use crate::home::HomeKind;

/// How often to look for some, at least.
const CHECK: Duration = Duration::from_secs(30);

impl Sandboxes {
    /// Packs nothing if `after` is `None`, but removes what is left of memory that was packed before.
    pub(crate) fn pack_memory_after(self: &Arc<Self>, after: Option<Duration>) {
        // Those of a command end with it.
        if *self.provisioner.home.kind() != HomeKind::Server {
            return;
        }
        let sandboxes = Arc::downgrade(self);
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(after.unwrap_or(CHECK).min(CHECK)).await;
                let Some(sandboxes) = sandboxes.upgrade() else { return };
                let provisioner = &sandboxes.provisioner;
                let (packed, home) = (Arc::clone(&provisioner.packed), Arc::clone(&provisioner.home));
                let memories = sandboxes.saved_memories(after.is_some());
                // A node that closes does not wait for this. The next one waits for the home.
                drop(sandboxes);
                match memories {
                    Ok(memories) => packed.maintain(memories, after.unwrap_or_default(), home).await,
                    Err(error) => tracing::warn!(%error, "could not look for saved memory to pack"),
                }
            }
        });
    }

    /// Removes what a crash may have left incomplete.
    pub(super) async fn recover_packed_memory(&self) {
        let (packed, all) = (Arc::clone(&self.provisioner.packed), self.all_memories());
        let recovered = tokio::task::spawn_blocking(move || packed.recover(&all?)).await;
        if let Err(error) = recovered.map_err(io::Error::other).and_then(|recovered| recovered) {
            tracing::warn!(%error, "could not look after packed memory");
        }
    }

    /// Memory that is being saved or restored is not among those that may be packed.
    fn saved_memories(&self, may_pack: bool) -> io::Result<SavedMemories> {
        let is_saved = |state| state == NodeState::Saved;
        let paused = |sandbox: &Arc<Sandbox>| {
            let inner = sandbox.inner.try_lock().ok()?;
            is_saved(inner.state()).then(|| sandbox.directory.join(MEMORY))
        };
        let mut packable: Vec<PathBuf> = self.by_id().values().filter_map(paused).collect();
        packable.extend(self.snapshots.memories());
        packable.retain(|_| may_pack);
        Ok(SavedMemories { packable, all: self.all_memories()? })
    }

    /// Where all saved memory of this node may be.
    ///
    /// # Errors Not one less instead: the chunks of what is missing would be removed.
    fn all_memories(&self) -> io::Result<Vec<PathBuf>> {
        let home = &self.provisioner.home;
        let executions = home.executions()?;
        Ok(executions.iter().map(|execution| home.execution_directory(execution).join(MEMORY)).collect())
    }
}
