//! Restores saved processes in a sandbox that was just launched.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use isopod_checkpoint::{Criu, MemoryError, Restore, Saved, restore};
use isopod_guest_client::checkpoint::Checkpoint;
use isopod_isolation::launch::RestoredRights;
use isopod_wire::node::SandboxSpec;

use super::Sandboxes;
use crate::guest_request::socket_in;
use crate::provision::{ForRestore, ReadySandbox};

/// Saved processes, and the program that restores them.
#[derive(Clone, Debug)]
pub(super) struct SavedMemory {
    pub(super) criu: Arc<Criu>,
    pub(super) directory: std::path::PathBuf,
    pub(super) saved: Saved,
}

impl SavedMemory {
    pub(super) fn open(criu: Arc<Criu>, directory: &Path) -> std::io::Result<Self> {
        Ok(Self { criu, directory: directory.to_owned(), saved: Saved::read(directory)? })
    }

    /// For a sandbox that goes on, and so shows the same boot id.
    pub(super) fn for_resume(&self) -> ForRestore {
        ForRestore { last_pid: self.saved.last_pid(), boot_id: self.saved.boot_id.clone() }
    }

    /// For a copy.
    pub(super) fn for_copy(&self) -> ForRestore {
        ForRestore { boot_id: None, ..self.for_resume() }
    }
}

impl Sandboxes {
    /// Restores the processes below the sandbox's guest, which has its settings. After an error, the sandbox cannot be used.
    pub(super) async fn restore_memory(
        &self,
        ready: &ReadySandbox,
        spec: &SandboxSpec,
        memory: SavedMemory,
        is_copy: bool,
    ) -> Result<(), MemoryError> {
        let gone = || MemoryError::Refused("the new sandbox has ended".to_owned());
        let opened = File::open(&ready.directory).map_err(|_| gone())?;
        let init = ready.record.init.as_ref().ok_or_else(gone)?.pid;
        let restored = restore(Restore {
            backend: Arc::clone(&self.provisioner.backend),
            criu: memory.criu,
            init,
            pidfd: ready.pidfd.try_clone().map_err(|_| gone())?,
            cgroup: ready.cgroup.clone(),
            guest: Checkpoint::over_unix(socket_in(&opened)),
            directory: ready.directory.clone(),
            rights: RestoredRights { init, first_id: ready.slot.first_id(), features: spec.features },
            memory: memory.directory,
            saved: memory.saved,
            is_copy,
        });
        restored.await
    }
}
