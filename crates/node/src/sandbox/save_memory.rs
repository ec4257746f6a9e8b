//! Moves the memory of a paused sandbox to disk, after a while.

use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use isopod_checkpoint::{MEMORY, MemoryError, NoteStopped, Save, Saved, Saving, save};
use isopod_isolation::launch::RestoredRights;
use isopod_wire::node::{Incarnation, NodeError, NodeState};

use super::pause::{failed, save as save_record};
use super::{Inner, Sandbox, Sandboxes};
use crate::disposal::{Remains, remove_memory, stop};

/// What a dump leaves free on the disk of the state directory.
pub(super) const SPACE_LEFT: u64 = 1 << 30;

impl Sandboxes {
    /// Why memory cannot be saved on this node.
    pub(crate) fn no_memory_snapshots(&self) -> Option<String> {
        self.criu.get().err()
    }

    /// Saves the memory of a sandbox that has just been paused, unless it is resumed before.
    pub(crate) fn save_memory_later(self: &Arc<Self>, incarnation: &Incarnation) {
        let Some(sandbox) = self.find(incarnation) else { return };
        let pause = sandbox.pauses.fetch_add(1, Ordering::Relaxed) + 1;
        let (Some(delay), true) = (self.save_paused_after, self.criu.is_usable()) else { return };
        tokio::spawn(save_after(Arc::downgrade(self), incarnation.clone(), pause, delay));
    }

    /// Saves the memory of a paused sandbox and frees its RAM. After an error, it stays paused as it was.
    pub(crate) async fn save_memory(&self, incarnation: &Incarnation) -> Result<(), NodeError> {
        let sandbox = self.get(incarnation)?;
        let mut inner = sandbox.inner.lock().await;
        match inner.state() {
            NodeState::Frozen if !inner.ending => {}
            NodeState::Saved => return Ok(()),
            state => return Err(NodeError::WrongState { incarnation: incarnation.clone(), state }),
        }
        let memory = sandbox.directory.join(MEMORY);
        let saving = match self.save_processes(&sandbox, &mut inner, memory.clone(), true).await {
            Ok(saving) => saving,
            Err(error) => return Err(freeze_again(&sandbox, &inner, error).await),
        };
        if let Err(error) = self.record_saved(&sandbox, &mut inner, &memory).await {
            saving.go_on().await;
            remove(&sandbox.directory).await;
            return Err(freeze_again(&sandbox, &inner, error).await);
        }
        // From here on, the memory on disk counts.
        saving.keep_stopped();
        self.end_processes(&sandbox, &mut inner).await
    }

    /// As [`Self::save_memory`], but few at a time. An error, which is logged, says why its memory is still in RAM.
    pub(super) async fn save_in_turn(&self, incarnation: &Incarnation) -> Result<(), String> {
        let Ok(_turn) = self.saves.acquire().await else { return Err("the node is closing".to_owned()) };
        match self.save_memory(incarnation).await {
            Ok(()) => tracing::info!(%incarnation, "saved the memory of a paused sandbox"),
            // It was resumed or removed meanwhile.
            Err(NodeError::NotFound(_) | NodeError::WrongState { .. }) => {}
            Err(error) => {
                let cause = &error as &dyn std::error::Error;
                tracing::warn!(%incarnation, error = cause, "could not save the memory of a paused sandbox");
                return Err(match error {
                    NodeError::Memory { reason, .. } | NodeError::NoMemory { reason, .. } => reason,
                    other => isopod_wire::error_chain(&other),
                });
            }
        }
        Ok(())
    }

    /// Writes everything to disk, the record last: after a power cut, memory must not meet older files.
    async fn record_saved(&self, sandbox: &Sandbox, inner: &mut Inner, memory: &Path) -> Result<(), NodeError> {
        self.sync_files(sandbox, inner, "save the memory of").await?;
        let memory = memory.to_owned();
        let synced = tokio::task::spawn_blocking(move || Saved::sync(&memory)).await;
        let not_saved = |error| failed(sandbox, "save the memory of", error);
        synced.map_err(std::io::Error::other).and_then(|synced| synced).map_err(not_saved)?;
        inner.record.state = NodeState::Saved;
        inner.record.saving = false;
        save_record(sandbox, inner, "save the memory of").inspect_err(|_| {
            inner.record.state = NodeState::Frozen;
        })
    }

    /// Waits until the files of a sandbox are on disk.
    pub(super) async fn sync_files(
        &self,
        sandbox: &Sandbox,
        inner: &Inner,
        what: &'static str,
    ) -> Result<(), NodeError> {
        let Some(area) = inner.record.area.clone() else { return Ok(()) };
        let provisioner = Arc::clone(&self.provisioner);
        let synced = tokio::task::spawn_blocking(move || provisioner.host.disk.sync_area(&area)).await;
        synced.map_err(|error| failed(sandbox, what, error))?.map_err(|error| failed(sandbox, what, error))
    }

    /// Saves all processes of a sandbox into a new directory. They stand still then, and the record says so until the caller
    /// changes that. After an error, they go on.
    pub(super) async fn save_processes(
        &self,
        sandbox: &Sandbox,
        inner: &mut Inner,
        memory: PathBuf,
        is_frozen: bool,
    ) -> Result<Saving, NodeError> {
        self.check_space(sandbox, inner)?;
        inner.record.saving = true;
        let noted = save_record(sandbox, inner, "save the memory of");
        let saved = match noted {
            Ok(()) => self.try_save_processes(sandbox, inner, memory, is_frozen).await,
            Err(error) => Err(error),
        };
        if saved.is_err() {
            inner.record.saving = false;
            save_record(sandbox, inner, "save the memory of")?;
        }
        saved
    }

    async fn try_save_processes(
        &self,
        sandbox: &Sandbox,
        inner: &Inner,
        memory: PathBuf,
        is_frozen: bool,
    ) -> Result<Saving, NodeError> {
        let incarnation = &sandbox.incarnation;
        let (Some(processes), Some(init)) = (&inner.processes, &inner.record.init) else {
            return Err(NodeError::NotFound(incarnation.clone()));
        };
        let features = inner.record.spec.as_ref().map(|spec| spec.features).unwrap_or_default();
        if !features.is_none() {
            let reason = "it has kernel features (isopod.allow), with which memory cannot be saved safely".to_owned();
            return Err(NodeError::Memory { incarnation: incarnation.clone(), reason });
        }
        let no_memory = |reason| NodeError::NoMemory { incarnation: incarnation.clone(), reason };
        let socket = processes.socket.try_clone().map_err(|error| failed(sandbox, "save the memory of", error))?;
        let saved = save(Save {
            backend: Arc::clone(&self.provisioner.backend),
            criu: self.criu.get().map_err(no_memory)?,
            init: init.pid,
            pidfd: Arc::clone(&processes.pidfd),
            cgroup: processes.cgroup.clone(),
            host_boot: init.boot_id.clone(),
            socket,
            is_frozen,
            memory,
            max_memory: inner.record.limits.memory.0,
            rights: RestoredRights { init: init.pid, first_id: processes.slot.first_id(), features },
            note_stopped: note_stopped(sandbox, inner),
        });
        saved.await.map_err(|error| memory_error(incarnation, error))
    }

    /// Records and the database are on the same disk, and must not be the ones that find it full.
    pub(super) fn check_space(&self, sandbox: &Sandbox, inner: &Inner) -> Result<(), NodeError> {
        let what = "save the memory of";
        let Some(processes) = &inner.processes else { return Ok(()) };
        let memory = processes.cgroup.usage().map_err(|error| failed(sandbox, what, error))?.memory;
        let free = self.provisioner.host.disk.host_free_space().map_err(|error| failed(sandbox, what, error))?;
        if free.0 < memory.saturating_add(SPACE_LEFT) {
            let reason = format!("there is no space for {} MiB on the state directory's disk", memory >> 20);
            return Err(NodeError::Memory { incarnation: sandbox.incarnation.clone(), reason });
        }
        Ok(())
    }

    /// Ends the processes of a sandbox whose record already says that it needs none.
    pub(super) async fn end_processes(&self, sandbox: &Sandbox, inner: &mut Inner) -> Result<(), NodeError> {
        drop(inner.processes.take());
        let provisioner = Arc::clone(&self.provisioner);
        let remains = Remains::of(&inner.record, &provisioner.home);
        let stopped = tokio::task::spawn_blocking(move || stop(&provisioner.host, &remains)).await;
        stopped.map_err(|error| failed(sandbox, "pause", error))?;
        inner.record.init = None;
        inner.record.slot = None;
        inner.record.owner = None;
        save_record(sandbox, inner, "pause")
    }
}

/// Writes down which processes the next server must leave stopped, if this one dies while it saves.
fn note_stopped(sandbox: &Sandbox, inner: &Inner) -> NoteStopped {
    let (record, directory) = (Mutex::new(inner.record.clone()), sandbox.directory.clone());
    NoteStopped(Arc::new(move |pids| {
        let mut noted = record.lock().unwrap_or_else(PoisonError::into_inner);
        if noted.stopped_before_saving == pids {
            return Ok(());
        }
        noted.stopped_before_saving = pids;
        noted.save(&directory)
    }))
}

/// `pause` is the number of the pause, because the sandbox may have been resumed and paused again meanwhile.
async fn save_after(sandboxes: Weak<Sandboxes>, incarnation: Incarnation, pause: u64, delay: Duration) {
    tokio::time::sleep(delay).await;
    let Some(sandboxes) = sandboxes.upgrade() else { return };
    let is_same = |sandbox: Arc<Sandbox>| sandbox.pauses.load(Ordering::Relaxed) == pause;
    if !sandboxes.find(&incarnation).is_some_and(is_same) {
        return;
    }
    // An error is logged, and the sandbox stays paused as it was.
    let _ = sandboxes.save_in_turn(&incarnation).await;
}

/// After a failure they go on, but the sandbox is still paused.
async fn freeze_again(sandbox: &Sandbox, inner: &Inner, error: NodeError) -> NodeError {
    let Some(processes) = &inner.processes else { return error };
    let cgroup = processes.cgroup.clone();
    match tokio::task::spawn_blocking(move || cgroup.freeze()).await {
        Ok(Ok(())) => error,
        Ok(Err(not_frozen)) => failed(sandbox, "pause", not_frozen),
        Err(not_frozen) => failed(sandbox, "pause", not_frozen),
    }
}

/// Removes the memory in the directory of an execution. Gigabytes take a while.
pub(super) async fn remove(directory: &Path) {
    let directory = directory.to_owned();
    let removed = tokio::task::spawn_blocking(move || remove_memory(&directory)).await;
    if let Err(error) = removed.map_err(std::io::Error::other).and_then(|removed| removed) {
        tracing::warn!(%error, "could not remove the memory of a sandbox");
    }
}

pub(super) fn memory_error(incarnation: &Incarnation, error: MemoryError) -> NodeError {
    let reason = isopod_wire::error_chain(&error);
    NodeError::Memory { incarnation: incarnation.clone(), reason }
}
