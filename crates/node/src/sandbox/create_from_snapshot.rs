//! Creates a sandbox from a snapshot.

use std::fs::File;
use std::sync::Arc;

use isopod_checkpoint::MemoryError;
use isopod_wire::SnapshotId;
use isopod_wire::checkpoint::RestoredAs;
use isopod_wire::node::{CreateError, Incarnation, SandboxSpec};

use super::Sandboxes;
use super::create::{failed, full_or_failed};
use super::snapshot::Snapshot;
use crate::admission::why_full;
use crate::guest_request::checkpoint_client;
use crate::provision::{LayerSource, Plan, ReadySandbox};
use crate::saved_memory::SavedMemory;
use crate::start::CREATE_TIMEOUT;
use crate::workspace::Mounting;

/// What a sandbox is to the one that its snapshot was taken of.
#[derive(Clone, Debug)]
pub(super) enum Relation {
    /// Another one, which differs where that matters. The source may go on.
    Copy,
    /// Itself, put back.
    Itself { host_name: Option<String> },
}

impl Relation {
    fn restored(&self) -> RestoredAs {
        match self {
            Self::Copy => RestoredAs::Copy,
            Self::Itself { .. } => RestoredAs::Itself,
        }
    }
}

impl Sandboxes {
    pub(super) async fn create_from_snapshot(
        self: &Arc<Self>,
        id: &SnapshotId,
        spec: SandboxSpec,
    ) -> Result<Incarnation, CreateError> {
        let (ready, spec) = self.start_from_snapshot(id, spec, Relation::Copy).await?;
        let incarnation = Incarnation { sandbox: spec.sandbox.clone(), execution: ready.record.execution.clone() };
        self.enter(ready, spec, incarnation).await
    }

    /// Starts a sandbox from a snapshot, without an owner yet.
    pub(super) async fn start_from_snapshot(
        self: &Arc<Self>,
        id: &SnapshotId,
        mut spec: SandboxSpec,
        relation: Relation,
    ) -> Result<(ReadySandbox, SandboxSpec), CreateError> {
        let snapshot = self.snapshots.get(id).ok_or_else(|| CreateError::UnknownSnapshot(id.clone()))?;
        // A sandbox is what its record says, and does not need the snapshot any more.
        spec.snapshot = None;
        spec.template.clone_from(&snapshot.record.template);
        spec.features = snapshot.record.spec.as_ref().map(|source| source.features).unwrap_or_default();
        if let Some(reason) = why_full(&self.provisioner.host) {
            return Err(CreateError::Full(reason));
        }
        let memory = self.memory_of(&snapshot)?;
        let ready = self.launch_copy(snapshot, &spec, memory.clone(), &relation).await?;
        match self.start_copy(&ready, &spec, memory, &relation).await {
            Ok(()) => Ok((ready, spec)),
            Err(error) => {
                self.discard(ready).await;
                Err(error)
            }
        }
    }

    async fn start_copy(
        &self,
        ready: &ReadySandbox,
        spec: &SandboxSpec,
        memory: Option<SavedMemory>,
        relation: &Relation,
    ) -> Result<(), CreateError> {
        self.init_guest(ready, spec).await.map_err(failed)?;
        if let Some(memory) = memory {
            let restored = self.provisioner.restore_memory(ready, spec.features, memory, relation.restored()).await;
            let failed = |error: MemoryError| CreateError::Memory(isopod_wire::error_chain(&error));
            restored.map_err(failed)?.go_on();
        }
        if let (Relation::Copy, Some(name)) = (relation, &ready.record.host_name) {
            // Not earlier: processes may have the files open.
            let directory = File::open(&ready.directory).map_err(failed)?;
            let guest = checkpoint_client(&directory).map_err(failed)?;
            guest.set_identity(name).await.map_err(failed)?;
        }
        Ok(())
    }

    fn memory_of(&self, snapshot: &Snapshot) -> Result<Option<SavedMemory>, CreateError> {
        let Some(directory) = snapshot.memory() else { return Ok(None) };
        let criu = self.criu.as_ref().map_err(|reason| CreateError::Memory(reason.clone()))?;
        SavedMemory::open(Arc::clone(criu), &directory).map(Some).map_err(failed)
    }

    async fn launch_copy(
        self: &Arc<Self>,
        snapshot: Snapshot,
        spec: &SandboxSpec,
        memory: Option<SavedMemory>,
        relation: &Relation,
    ) -> Result<ReadySandbox, CreateError> {
        let (sandboxes, spec, relation) = (Arc::clone(self), spec.clone(), relation.clone());
        let launched = tokio::task::spawn_blocking(move || {
            let template = sandboxes
                .template_of(&snapshot.record)
                .map_err(|error| CreateError::Memory(format!("its template is no longer there: {error}")))?;
            let (host_name, restored) = match relation {
                Relation::Copy => (Some(spec.sandbox.as_str().to_owned()), memory.as_ref().map(SavedMemory::for_copy)),
                Relation::Itself { host_name } => (host_name, memory.as_ref().map(SavedMemory::for_resume)),
            };
            let plan = Plan {
                features: spec.features,
                layer: snapshot.record.area.as_deref().map_or(LayerSource::New, LayerSource::CopyOf),
                host_name,
                restored: restored.as_ref(),
                ..Plan::new(&template, &spec.limits)
            };
            let ready = sandboxes.make_on(plan, &spec, Mounting::First).map_err(full_or_failed)?;
            if memory.is_none() {
                sandboxes.provisioner.run_start_command(&ready, CREATE_TIMEOUT);
            }
            Ok(ready)
        });
        launched.await.map_err(failed)?
    }
}
