//! Takes snapshots that clients keep: record the intent, let the node take it, record the result.
//!
//! All of it runs in a task of its own, so that a client that disconnects changes nothing. Whatever a node keeps and no
//! row names is removed: at once after a failure, when a server starts, and from time to time.

use std::collections::HashSet;
use std::sync::{Arc, PoisonError};

use isopod_store::secrets::{new_snapshot_id, new_template_id, new_uuid};
use isopod_store::{
    BeginSnapshot, Build, EventType, FinishSnapshot, KeptSnapshot, Level, NewSnapshot, SandboxRow, SnapshotPart,
    SnapshotSize, SnapshotSource, StoreError,
};
use isopod_wire::node::SnapshotKind;
use isopod_wire::{ALLOW, Bytes, SnapshotId};
use serde_json::json;

use super::fleet::Fleet;
use super::handle::{ActError, Sandbox};

/// Why no snapshot was taken.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    #[error(transparent)]
    Act(#[from] ActError),
    #[error("the name '{0}' belongs to a template; choose another one")]
    NameTaken(String),
    #[error("the team already has {0} snapshots; delete some of them first")]
    TooMany(u32),
    #[error("the {part} of the team's snapshots may take {} together; delete some of them first", Bytes(*.most))]
    TooLarge { part: SnapshotPart, most: u64 },
    /// Its name was deleted in the meantime.
    #[error("the snapshot was deleted while it was being taken")]
    Deleted,
    #[error("the store failed")]
    Store(#[from] StoreError),
    /// The task that takes it panicked or was cancelled.
    #[error("the snapshot was not taken")]
    Aborted,
}

/// What a client wants to keep.
#[derive(Clone, Debug)]
pub(crate) struct WantedSnapshot {
    pub(crate) name: Option<String>,
    pub(crate) tag: String,
    pub(crate) with_memory: bool,
}

impl Fleet {
    /// Takes a snapshot of a running sandbox.
    pub(crate) async fn take_snapshot(
        self: &Arc<Self>,
        sandbox: Arc<Sandbox>,
        wanted: WantedSnapshot,
    ) -> Result<KeptSnapshot, SnapshotError> {
        let fleet = Arc::clone(self);
        let taking = tokio::spawn(async move { fleet.run_snapshot(&sandbox, wanted).await });
        taking.await.unwrap_or(Err(SnapshotError::Aborted))
    }

    async fn run_snapshot(&self, sandbox: &Sandbox, wanted: WantedSnapshot) -> Result<KeptSnapshot, SnapshotError> {
        if wanted.with_memory {
            self.check_saves_memory().await?;
        }
        let view = sandbox.view();
        let new = self.new_snapshot(&view.row, &wanted);
        let (template, build) = match self.store.begin_snapshot(&new).await? {
            BeginSnapshot::Begun(template, build) => (template, *build),
            BeginSnapshot::NameTaken => return Err(SnapshotError::NameTaken(wanted.name.unwrap_or_default())),
            BeginSnapshot::TooMany => return Err(SnapshotError::TooMany(new.most)),
            BeginSnapshot::TooLarge(part) => return Err(too_large(&new, part)),
        };
        match self.keep(sandbox, &new, &build).await {
            Ok(size) => {
                let shown = json!({ "snapshot_id": template.id, "snapshot_name": wanted.name });
                self.journal.event(EventType::Checkpointed, &sandbox.view().row, shown);
                self.journal.line(sandbox.id(), Level::Info, "snapshot taken", &[("snapshot", template.id.clone())]);
                let build = Build { size: Some(size.total()), memory_size: Some(size.memory), ..build };
                Ok(KeptSnapshot { template, build, tag: Some(wanted.tag), position: 0 })
            }
            Err(error) => {
                self.discard_snapshot(&new.source.id).await;
                if let Err(error) = self.store.abandon_snapshot(&build).await {
                    tracing::warn!(
                        error = isopod_wire::error_chain(&error),
                        "could not delete the record of a snapshot; the next server will"
                    );
                }
                Err(error)
            }
        }
    }

    fn new_snapshot(&self, row: &SandboxRow, wanted: &WantedSnapshot) -> NewSnapshot {
        NewSnapshot {
            team: row.team.clone(),
            name: wanted.name.clone(),
            tag: wanted.tag.clone(),
            template: new_template_id(),
            build: new_uuid(),
            limits: row.limits,
            source: SnapshotSource {
                id: new_snapshot_id(),
                has_memory: wanted.with_memory,
                sandbox: row.id.clone(),
                features: row.metadata.get(ALLOW).cloned(),
            },
            most: self.settings.team_limits.snapshots,
            most_memory: self.settings.team_limits.snapshot_memory,
            most_disk: self.settings.team_limits.snapshot_disk,
        }
    }

    /// Lets the node take the snapshot and records it. Returns its size.
    async fn keep(&self, sandbox: &Sandbox, new: &NewSnapshot, build: &Build) -> Result<SnapshotSize, SnapshotError> {
        let kind = if new.source.has_memory { SnapshotKind::Memory } else { SnapshotKind::Files };
        let taken = sandbox.snapshot(new.source.id.clone(), kind).await?;
        let bytes = |size: Bytes| i64::try_from(size.0).unwrap_or(i64::MAX);
        let size = SnapshotSize { memory: bytes(taken.memory_size), disk: bytes(taken.disk_size) };
        match self.store.finish_snapshot(new, build, &taken.template, size).await? {
            FinishSnapshot::Kept => Ok(size),
            FinishSnapshot::Deleted => Err(SnapshotError::Deleted),
            FinishSnapshot::TooLarge(part) => Err(too_large(new, part)),
        }
    }

    /// Refuses if the node cannot save memory, with the reason and what to do about it.
    pub(crate) async fn check_saves_memory(&self) -> Result<(), ActError> {
        match self.node.no_memory_snapshots().await {
            Some(reason) => Err(ActError::NoMemory(reason)),
            None => Ok(()),
        }
    }

    /// Removes a snapshot from the node. If that fails, a later check tries again.
    pub(super) async fn discard_snapshot(&self, id: &SnapshotId) {
        if let Err(error) = self.node.remove_snapshot(id).await {
            tracing::warn!(snapshot = %id, %error, "could not remove a snapshot yet");
        }
    }

    /// Removes the snapshots on the node that neither a row nor a fork in progress names. Returns how many there were.
    pub(crate) async fn remove_unrecorded_snapshots(&self) -> Result<u32, StoreError> {
        // The order matters: a snapshot has its row or its mark before it is on the node.
        let on_node = self.node.snapshots().await;
        if on_node.is_empty() {
            return Ok(0);
        }
        let recorded = self.store.kept_snapshots().await?;
        let temporary = self.temporary_snapshots.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let mut removed = 0;
        for snapshot in on_node {
            if !recorded.contains(&snapshot.id) && !temporary.contains(&snapshot.id) {
                self.discard_snapshot(&snapshot.id).await;
                removed += 1;
            }
        }
        Ok(removed)
    }

    /// Marks a snapshot that only this server knows, until the mark is dropped.
    pub(super) fn mark_temporary(self: &Arc<Self>) -> TemporarySnapshot {
        let id = new_snapshot_id();
        self.temporary_snapshots.lock().unwrap_or_else(PoisonError::into_inner).insert(id.clone());
        TemporarySnapshot { fleet: Arc::clone(self), id }
    }
}

fn too_large(new: &NewSnapshot, part: SnapshotPart) -> SnapshotError {
    let most = match part {
        SnapshotPart::Memory => new.most_memory,
        SnapshotPart::Files => new.most_disk,
    };
    SnapshotError::TooLarge { part, most: most.unwrap_or_default() }
}

/// Snapshots of forks in progress.
pub(super) type TemporarySnapshots = std::sync::Mutex<HashSet<SnapshotId>>;

/// The snapshot of a fork in progress. Once this is dropped, whatever the node has of it is removed by the next check.
pub(super) struct TemporarySnapshot {
    fleet: Arc<Fleet>,
    pub(super) id: SnapshotId,
}

impl TemporarySnapshot {
    /// Removes the snapshot in the background, because gigabytes take a while. This is safe:
    ///
    /// - Nobody else finds it: it has no row, and the mark stays until it is gone, so no check removes it a second time.
    /// - A server that stops waits for it: this task has the fleet, and with it the journal, which the server waits for.
    /// - A server that is killed leaves what the node removes when it starts again, as it does with all that is half made.
    pub(super) fn remove_later(self) {
        tokio::spawn(async move { self.fleet.discard_snapshot(&self.id).await });
    }
}

impl Drop for TemporarySnapshot {
    fn drop(&mut self) {
        self.fleet.temporary_snapshots.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.id);
    }
}
