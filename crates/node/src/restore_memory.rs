//! Restores saved processes in a sandbox that was just launched.

use std::fs::File;
use std::sync::Arc;

use isopod_checkpoint::{MemoryError, Restore, SavedMemory, Stopped, restore};
use isopod_isolation::launch::RestoredRights;
use isopod_wire::KernelFeatures;
use isopod_wire::checkpoint::RestoredAs;

use crate::guest_request::checkpoint_client;
use crate::provision::{Provisioner, ReadySandbox};

impl Provisioner {
    /// Restores the processes below the sandbox's guest, which has its settings. They are stopped. After an error, the sandbox
    /// cannot be used.
    pub(crate) async fn restore_memory(
        &self,
        ready: &ReadySandbox,
        features: KernelFeatures,
        memory: SavedMemory,
        restored: RestoredAs,
    ) -> Result<Stopped, MemoryError> {
        let gone = || MemoryError::Refused("the new sandbox has ended".to_owned());
        let _in_use = self.packed.unpack(&memory.directory).await?;
        let opened = File::open(&ready.directory).map_err(|_| gone())?;
        let init = ready.record.init.as_ref().ok_or_else(gone)?.pid;
        let restoring = restore(Restore {
            backend: Arc::clone(&self.backend),
            criu: memory.criu,
            init,
            pidfd: ready.pidfd.try_clone().map_err(|_| gone())?,
            cgroup: ready.cgroup.clone(),
            guest: checkpoint_client(&opened).map_err(|_| gone())?,
            directory: ready.directory.clone(),
            rights: RestoredRights { init, first_id: ready.slot.first_id(), features },
            memory: memory.directory,
            saved: memory.saved,
            restored,
        });
        restoring.await
    }
}
