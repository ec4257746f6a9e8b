//! Creates a sandbox from a snapshot.

use std::fs::File;
use std::sync::Arc;

use isopod_checkpoint::{MemoryError, SavedMemory};
use isopod_wire::checkpoint::RestoredAs;
use isopod_wire::error_chain;
use isopod_wire::node::{CreateError, Incarnation, InitialSnapshot, SandboxSpec};
use tokio::task::JoinError;

use super::Sandboxes;
use super::create::{failed, full_or_failed};
use super::snapshot::Snapshot;
use crate::admission::why_full;
use crate::guest_request::checkpoint_client;
use crate::provision::{LayerSource, Plan, ReadySandbox};
use crate::record::Record;
use crate::start::CREATE_TIMEOUT;
use crate::template::{Template, TemplateError};
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
        from: InitialSnapshot,
        spec: SandboxSpec,
    ) -> Result<Incarnation, CreateError> {
        let snapshot = self.snapshots.get(&from.id).ok_or(CreateError::UnknownSnapshot(from.id))?;
        let memory = if from.files_only { None } else { self.memory_of(&snapshot)? };
        self.create_copy(snapshot, memory, spec).await
    }

    /// Creates a copy of the sandbox that a snapshot was taken of.
    pub(super) async fn create_copy(
        self: &Arc<Self>,
        snapshot: Snapshot,
        memory: Option<SavedMemory>,
        spec: SandboxSpec,
    ) -> Result<Incarnation, CreateError> {
        let (ready, spec) = self.start_from_snapshot(snapshot, memory, spec, Relation::Copy).await?;
        let incarnation = Incarnation { sandbox: spec.sandbox.clone(), execution: ready.record.execution.clone() };
        self.enter(ready, spec, incarnation).await
    }

    /// Starts a sandbox from a snapshot, without an owner yet: with its memory, or from its files alone.
    pub(super) async fn start_from_snapshot(
        self: &Arc<Self>,
        snapshot: Snapshot,
        memory: Option<SavedMemory>,
        mut spec: SandboxSpec,
        relation: Relation,
    ) -> Result<(ReadySandbox, SandboxSpec), CreateError> {
        // A sandbox is what its record says, and does not need the snapshot any more.
        spec.snapshot = None;
        spec.template.clone_from(&snapshot.record.template);
        spec.features = snapshot.record.spec.as_ref().map(|source| source.features).unwrap_or_default();
        if let Some(reason) = why_full(&self.provisioner.host) {
            return Err(CreateError::Full(reason));
        }
        let template = self.template_for_copy(&snapshot, memory.is_some()).await?;
        let ready = self.launch_copy(snapshot, template, &spec, memory.clone(), &relation).await?;
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
            let failed = |error: MemoryError| CreateError::Memory(error_chain(&error));
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

    pub(super) fn memory_of(&self, snapshot: &Snapshot) -> Result<Option<SavedMemory>, CreateError> {
        let Some(directory) = snapshot.memory() else { return Ok(None) };
        let criu = self.criu.get().map_err(CreateError::NoMemory)?;
        SavedMemory::open(criu, &directory).map(Some).map_err(failed)
    }

    /// Processes need the very files that they have mapped. Files alone do with what the template is now.
    async fn template_for_copy(
        self: &Arc<Self>,
        snapshot: &Snapshot,
        with_memory: bool,
    ) -> Result<Arc<Template>, CreateError> {
        match self.template_of_kept(&snapshot.record).await.map_err(failed)? {
            Ok(template) => Ok(template),
            Err(error) if with_memory => {
                Err(CreateError::Memory(format!("its template is no longer there: {}", error_chain(&error))))
            }
            Err(_) => Ok(self.template_pool(&snapshot.record.template).await?.template()),
        }
    }

    /// As [`Self::template_of`], for a caller that must not block.
    pub(super) async fn template_of_kept(
        self: &Arc<Self>,
        record: &Record,
    ) -> Result<Result<Arc<Template>, TemplateError>, JoinError> {
        let (sandboxes, record) = (Arc::clone(self), record.clone());
        tokio::task::spawn_blocking(move || sandboxes.template_of(&record)).await
    }

    async fn launch_copy(
        self: &Arc<Self>,
        snapshot: Snapshot,
        template: Arc<Template>,
        spec: &SandboxSpec,
        memory: Option<SavedMemory>,
        relation: &Relation,
    ) -> Result<ReadySandbox, CreateError> {
        let (sandboxes, spec, relation) = (Arc::clone(self), spec.clone(), relation.clone());
        let launched = tokio::task::spawn_blocking(move || {
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
