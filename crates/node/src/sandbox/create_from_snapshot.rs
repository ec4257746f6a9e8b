//! Creates a sandbox from a snapshot.

use std::sync::Arc;

use isopod_wire::SnapshotId;
use isopod_wire::node::{CreateError, Incarnation, SandboxSpec};

use super::Sandboxes;
use super::create::{failed, full_or_failed};
use super::restore_memory::SavedMemory;
use super::snapshot::Snapshot;
use crate::admission::why_full;
use crate::checkpoint::MemoryError;
use crate::provision::{LayerSource, ProvisionError, ReadySandbox};
use crate::record::random_execution_id;
use crate::start::CREATE_TIMEOUT;
use crate::workspace::Mounting;

impl Sandboxes {
    pub(super) async fn create_from_snapshot(
        self: &Arc<Self>,
        id: &SnapshotId,
        spec: SandboxSpec,
    ) -> Result<Incarnation, CreateError> {
        let (ready, spec) = self.start_from_snapshot(id, spec, true).await?;
        let incarnation = Incarnation { sandbox: spec.sandbox.clone(), execution: ready.record.execution.clone() };
        self.enter(ready, spec, incarnation).await
    }

    /// Starts a sandbox from a snapshot, without an owner yet. A copy differs from its source, where that goes on too.
    pub(super) async fn start_from_snapshot(
        self: &Arc<Self>,
        id: &SnapshotId,
        mut spec: SandboxSpec,
        is_copy: bool,
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
        let ready = self.launch_copy(snapshot, &spec, memory.clone(), is_copy).await?;
        let started = match self.init_guest(&ready, &spec).await {
            Ok(()) => match memory {
                Some(memory) => self.restore_memory(&ready, &spec, memory, is_copy).await.map_err(not_restored),
                None => Ok(()),
            },
            Err(error) => Err(failed(error)),
        };
        match started {
            Ok(()) => Ok((ready, spec)),
            Err(error) => {
                self.discard(ready).await;
                Err(error)
            }
        }
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
        is_copy: bool,
    ) -> Result<ReadySandbox, CreateError> {
        let (sandboxes, spec) = (Arc::clone(self), spec.clone());
        let launched = tokio::task::spawn_blocking(move || {
            let template = sandboxes
                .template_of(&snapshot.record)
                .map_err(|error| CreateError::Memory(format!("its template is no longer there: {error}")))?;
            let area = snapshot.record.area.as_deref().map_or(LayerSource::New, LayerSource::CopyOf);
            let of = if is_copy { SavedMemory::for_copy } else { SavedMemory::for_resume };
            let restored = memory.as_ref().map(of);
            let provisioner = &sandboxes.provisioner;
            let launch = || {
                let execution = random_execution_id();
                let prepared =
                    provisioner.prepare(execution, &template, &spec.limits, spec.features, area, restored.as_ref())?;
                let ready = provisioner.launch(prepared, &spec.limits)?;
                match sandboxes.apply_spec(&ready, &spec, Mounting::First) {
                    Ok(()) => {
                        if memory.is_none() {
                            provisioner.bring_up(&ready, CREATE_TIMEOUT);
                        }
                        Ok(ready)
                    }
                    Err(error) => {
                        provisioner.discard_ready(ready);
                        Err(error)
                    }
                }
            };
            launch().map_err(|error: ProvisionError| full_or_failed(error))
        });
        launched.await.map_err(failed)?
    }
}

fn not_restored(error: MemoryError) -> CreateError {
    CreateError::Memory(isopod_wire::error_chain(&error))
}
