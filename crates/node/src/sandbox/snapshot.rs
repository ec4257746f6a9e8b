//! Takes snapshots of sandboxes, lists and removes them.
//!
//! A snapshot is kept like a stopped sandbox: a record, a writable layer, and saved processes if it has memory. So whatever
//! looks after those of sandboxes looks after it too. Until it is complete, its record names no owner, and the next start
//! removes it.
//!
//! A temporary one never becomes complete on disk, so a fork does not wait for the disk. Whatever a crash or a power cut leaves
//! of it says that it is half made. Only this process uses it, and keeps the layers below it open, which a complete record would
//! protect.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use isopod_checkpoint::{MEMORY, Saved};
use isopod_disk::{Amount, Copying};
use isopod_wire::node::{Incarnation, NodeError, NodeSnapshot, NodeState, SnapshotKind};
use isopod_wire::{Bytes, SnapshotId};

use super::pause::{failed, save};
use super::{Inner, Sandbox, Sandboxes};
use crate::disposal::{Remains, dispose};
use crate::record::{Record, SnapshotRecord, random_execution_id};
use crate::state::make_private_directory;
use crate::template::Template;

/// A copy that takes longer while the sandbox runs does not end by itself.
const MAX_COPY_TIME: Duration = Duration::from_secs(120);

/// A complete snapshot.
#[derive(Clone, Debug)]
pub(super) struct Snapshot {
    pub(super) record: Record,
    pub(super) directory: PathBuf,
    /// Of a temporary one.
    _template: Option<Arc<Template>>,
}

/// The snapshots of a node.
#[derive(Debug, Default)]
pub(super) struct Snapshots(Mutex<HashMap<SnapshotId, Snapshot>>);

impl Snapshots {
    fn table(&self) -> MutexGuard<'_, HashMap<SnapshotId, Snapshot>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn get(&self, id: &SnapshotId) -> Option<Snapshot> {
        self.table().get(id).cloned()
    }

    /// Where those with memory have it.
    pub(super) fn memories(&self) -> Vec<PathBuf> {
        self.table().values().filter_map(Snapshot::memory).collect()
    }

    pub(super) fn add(&self, snapshot: Snapshot) {
        if let Some(named) = &snapshot.record.snapshot {
            self.table().insert(named.id.clone(), snapshot);
        }
    }
}

impl Snapshot {
    /// One whose record on disk is complete.
    pub(super) fn complete(record: Record, directory: PathBuf) -> Self {
        Self { record, directory, _template: None }
    }

    pub(super) fn memory(&self) -> Option<PathBuf> {
        (self.record.state == NodeState::Saved).then(|| self.directory.join(MEMORY))
    }

    fn describe(&self) -> Option<NodeSnapshot> {
        let snapshot = self.record.snapshot.as_ref()?;
        Some(NodeSnapshot {
            id: snapshot.id.clone(),
            has_memory: self.record.state == NodeState::Saved,
            template: self.record.template.clone(),
            limits: self.record.limits,
            made_at: snapshot.made_at,
            memory_size: Bytes(snapshot.bytes),
            disk_size: Bytes(snapshot.disk_bytes),
        })
    }
}

impl Sandboxes {
    pub(crate) async fn snapshot(
        &self,
        incarnation: &Incarnation,
        id: &SnapshotId,
        kind: SnapshotKind,
    ) -> Result<NodeSnapshot, NodeError> {
        let is_snapshot = |record: &mut Record| {
            record.snapshot =
                Some(SnapshotRecord { id: id.clone(), made_at: SystemTime::now(), bytes: 0, disk_bytes: 0 });
        };
        let snapshot = self.copy_running(incarnation, kind, is_snapshot).await?;
        self.snapshots.add(snapshot.clone());
        snapshot.describe().ok_or_else(|| NodeError::NotFound(incarnation.clone()))
    }

    /// Copies a running sandbox, which goes on. `mark` says in the record what the copy is for.
    pub(super) async fn copy_running(
        &self,
        incarnation: &Incarnation,
        kind: SnapshotKind,
        mark: impl FnOnce(&mut Record),
    ) -> Result<Snapshot, NodeError> {
        let sandbox = self.get(incarnation)?;
        let inner = sandbox.inner.lock().await;
        check_running(&sandbox, &inner)?;
        let what = "take a snapshot of";
        if kind.has_memory() {
            // Before anything is written, so that a full disk is the reason that is told.
            self.check_space(&sandbox, &inner)?;
        }
        // Protects the layers until the record of the snapshot does.
        let template = inner.processes.as_ref().and_then(|processes| processes._template.clone());
        let source = Source::of(&inner);
        let mut record = new_record(&inner);
        drop(inner);
        mark(&mut record);
        let directory = self.provisioner.home.execution_directory(&record.execution);
        make_private_directory(&directory).map_err(|error| failed(&sandbox, what, error))?;
        let made = self.take(&sandbox, source, record.clone(), &directory, kind.has_memory()).await;
        let finished = match made {
            Ok(record) if kind == SnapshotKind::Temporary => {
                return Ok(Snapshot { record, directory, _template: template });
            }
            Ok(record) => self.finish(record, &directory).await.map_err(|error| failed(&sandbox, what, error)),
            Err(error) => Err(error),
        };
        match finished {
            Ok(record) => Ok(Snapshot::complete(record, directory)),
            Err(error) => {
                self.discard_snapshot(record).await;
                Err(error)
            }
        }
    }

    /// Copies what the sandbox has: what it can of its files while it can be used, and the rest while it stands still.
    async fn take(
        &self,
        sandbox: &Sandbox,
        source: Source,
        mut record: Record,
        directory: &Path,
        with_memory: bool,
    ) -> Result<Record, NodeError> {
        let what = "take a snapshot of";
        record.save(directory).map_err(|error| failed(sandbox, what, error))?;
        let copying = self.begin_copy(&source, &record).await.map_err(|error| failed(sandbox, what, error))?;
        let mut inner = sandbox.inner.lock().await;
        check_running(sandbox, &inner)?;
        if with_memory {
            let saving = self.save_processes(sandbox, &mut inner, directory.join(MEMORY), false).await?;
            let copied = self.copy_frozen_layer(sandbox, &inner, copying).await;
            saving.go_on().await;
            inner.record.saving = false;
            save(sandbox, &inner, what)?;
            copied?;
            record.state = NodeState::Saved;
        } else {
            self.copy_frozen_layer(sandbox, &inner, copying).await?;
            record.state = NodeState::Stopped;
        }
        if record.snapshot.is_some() {
            record.spec = inner.record.spec.clone();
        }
        Ok(record)
    }

    /// Copies what it can of the writable layer while the sandbox runs. Its programs must not be able to hold this up for
    /// good: those that serve a file system could, so nothing of theirs is copied now.
    async fn begin_copy(&self, source: &Source, record: &Record) -> std::io::Result<Copying> {
        let (Some(from), Some(to)) = (source.area.clone(), record.area.clone()) else {
            return Err(std::io::ErrorKind::NotFound.into());
        };
        if source.serves_files {
            return self.provisioner.host.disk.copy_at_the_end(&from, &to).map_err(std::io::Error::other);
        }
        let provisioner = Arc::clone(&self.provisioner);
        let begun = tokio::task::spawn_blocking(move || provisioner.host.disk.begin_copy(&from, &to));
        let begun = tokio::time::timeout(MAX_COPY_TIME, begun).await??;
        begun.map_err(std::io::Error::other)
    }

    /// Frozen, because a process that is only stopped can have itself continued, and change files while they are copied.
    async fn copy_frozen_layer(&self, sandbox: &Sandbox, inner: &Inner, copying: Copying) -> Result<(), NodeError> {
        let what = "take a snapshot of";
        let Some(processes) = &inner.processes else {
            return Err(NodeError::NotFound(sandbox.incarnation.clone()));
        };
        let cgroup = processes.cgroup.clone();
        let frozen = tokio::task::spawn_blocking(move || cgroup.freeze()).await;
        frozen.map_err(|error| failed(sandbox, what, error))?.map_err(|error| failed(sandbox, what, error))?;
        let copied = self.finish_copy(sandbox, copying).await;
        processes.cgroup.thaw().map_err(|error| failed(sandbox, what, error))?;
        copied.map_err(|error| failed(sandbox, what, error))
    }

    async fn finish_copy(&self, sandbox: &Sandbox, copying: Copying) -> std::io::Result<()> {
        let provisioner = Arc::clone(&self.provisioner);
        let copied = tokio::task::spawn_blocking(move || provisioner.host.disk.finish_copy(copying)).await?;
        let Amount { files, bytes } = copied.map_err(std::io::Error::other)?;
        tracing::debug!(incarnation = %sandbox.incarnation, files, bytes, "copied while the sandbox stood still");
        Ok(())
    }

    /// Writes everything to disk. The record is last: with it, the snapshot is there.
    async fn finish(&self, mut record: Record, directory: &Path) -> std::io::Result<Record> {
        let (provisioner, directory) = (Arc::clone(&self.provisioner), directory.to_owned());
        let finished = tokio::task::spawn_blocking(move || {
            if record.state == NodeState::Saved {
                Saved::sync(&directory.join(MEMORY))?;
            }
            if let Some(snapshot) = &mut record.snapshot {
                snapshot.bytes = size_of(&directory.join(MEMORY));
            }
            if let Some(area) = &record.area {
                let disk = &provisioner.host.disk;
                disk.sync_area(area).map_err(std::io::Error::other)?;
                if let Some(snapshot) = &mut record.snapshot {
                    snapshot.disk_bytes = disk.size(area).map_err(std::io::Error::other)?.0;
                }
            }
            record.save(&directory)?;
            Ok(record)
        });
        finished.await.map_err(std::io::Error::other)?
    }

    pub(crate) fn list_snapshots(&self) -> Vec<NodeSnapshot> {
        self.snapshots.table().values().filter_map(Snapshot::describe).collect()
    }

    pub(crate) async fn remove_snapshot(&self, id: &SnapshotId) {
        let removed = self.snapshots.table().remove(id);
        if let Some(snapshot) = removed {
            self.discard_snapshot(snapshot.record).await;
        }
    }

    pub(super) async fn discard_snapshot(&self, record: Record) {
        let provisioner = Arc::clone(&self.provisioner);
        let remains = Remains::of(&record, &provisioner.home);
        // A panic leaves a record, which the next start finds.
        let _ = tokio::task::spawn_blocking(move || dispose(&provisioner.host, &remains)).await;
    }
}

/// What is copied while others may use the sandbox.
struct Source {
    area: Option<String>,
    /// Its programs may serve a file system of their own.
    serves_files: bool,
}

impl Source {
    fn of(inner: &Inner) -> Self {
        let serves_files = inner.record.spec.as_ref().is_some_and(|spec| spec.features.fuse);
        Self { area: inner.record.area.clone(), serves_files }
    }
}

/// An execution never gets its files back after it has given them to the next one.
fn check_running(sandbox: &Sandbox, inner: &Inner) -> Result<(), NodeError> {
    if !inner.ending && inner.state() == NodeState::Running {
        return Ok(());
    }
    Err(NodeError::WrongState { incarnation: sandbox.incarnation.clone(), state: inner.state() })
}

/// Names no owner yet.
fn new_record(inner: &Inner) -> Record {
    let source = &inner.record;
    let mut record = Record::new(random_execution_id(), &source.template, &source.generation, source.limits);
    record.area = Some(record.execution.as_str().to_owned());
    record
}

/// The sum of the sizes of all files below a directory.
fn size_of(directory: &Path) -> u64 {
    let Ok(entries) = std::fs::read_dir(directory) else { return 0 };
    let size = |entry: std::fs::DirEntry| match entry.metadata() {
        Ok(found) if found.is_dir() => size_of(&entry.path()),
        Ok(found) => found.len(),
        Err(_) => 0,
    };
    entries.filter_map(Result::ok).map(size).sum()
}
