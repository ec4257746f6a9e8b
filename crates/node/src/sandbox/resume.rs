//! Resumes a paused sandbox.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use isopod_checkpoint::{MEMORY, MemoryError, SavedMemory, Stopped};
use isopod_wire::checkpoint::RestoredAs;
use isopod_wire::node::{Incarnation, NodeError, NodeState, SandboxSpec};

use super::pause::{failed, save, undo};
use super::watch::blockable_exit;
use super::{Inner, Processes, Sandbox, Sandboxes};
use crate::disposal::Remains;
use crate::guest_request;
use crate::provision::{LayerSource, Plan, ProvisionError, Provisioner, ReadySandbox};
use crate::record::{Record, random_execution_id};
use crate::start::CREATE_TIMEOUT;
use crate::template::{Template, TemplateError};
use crate::workspace::{Mounting, WorkspaceError};

impl Sandboxes {
    pub(crate) async fn resume(self: &Arc<Self>, incarnation: &Incarnation) -> Result<Incarnation, NodeError> {
        let sandbox = self.get(incarnation)?;
        let mut inner = sandbox.inner.lock().await;
        if inner.ending {
            return Err(NodeError::NotFound(incarnation.clone()));
        }
        match inner.state() {
            NodeState::Running => Ok(incarnation.clone()),
            NodeState::Frozen => {
                let (provisioner, record) = (Arc::clone(&self.provisioner), inner.record.clone());
                // Before it runs again. Errors are logged there.
                let _turn = sandbox.mounting.lock().await;
                let _ = tokio::task::spawn_blocking(move || restore(&provisioner, &record)).await;
                thaw(&sandbox, &mut inner)
            }
            NodeState::Saved | NodeState::Stopped => self.start_again(&sandbox, &mut inner).await,
        }
    }

    /// Starts a new execution on the files of the old one.
    async fn start_again(
        self: &Arc<Self>,
        sandbox: &Arc<Sandbox>,
        inner: &mut Inner,
    ) -> Result<Incarnation, NodeError> {
        let Some(spec) = inner.record.spec.clone() else {
            return Err(NodeError::NotFound(sandbox.incarnation.clone()));
        };
        let memory = self.memory_of_paused(sandbox, inner)?;
        let template = self.template_for_resume(sandbox, inner, memory.is_some()).await?;
        let sandboxes = Arc::clone(self);
        let (record, wanted, restored) =
            (inner.record.clone(), spec.clone(), memory.as_ref().map(SavedMemory::for_resume));
        let made = tokio::task::spawn_blocking(move || {
            let plan = Plan {
                features: wanted.features,
                layer: record.area.as_deref().map_or(LayerSource::New, LayerSource::Of),
                host_name: record.host_name.clone(),
                restored: restored.as_ref(),
                ..Plan::new(&template, &wanted.limits)
            };
            let ready = sandboxes.make_on(plan, &wanted, Mounting::Resume)?;
            if restored.is_none() {
                sandboxes.provisioner.run_start_command(&ready, CREATE_TIMEOUT);
            }
            Ok::<_, Box<dyn std::error::Error + Send + Sync>>(ready)
        });
        let made = made.await.map_err(|error| failed(sandbox, "resume", error))?;
        let ready = made.map_err(|error| not_resumed(sandbox, error))?;
        let started = match (self.init_guest(&ready, &spec).await, memory) {
            (Err(error), _) => Err(failed(sandbox, "resume", error)),
            (Ok(()), Some(memory)) => {
                let restored = self.provisioner.restore_memory(&ready, spec.features, memory, RestoredAs::Itself).await;
                restored.map(Some).map_err(|error| not_restored(&sandbox.incarnation, &error))
            }
            (Ok(()), None) => Ok(None),
        };
        match started {
            Ok(stopped) => self.replace(sandbox, inner, ready, spec, stopped).await,
            Err(error) => {
                self.discard(ready).await;
                Err(error)
            }
        }
    }

    /// The processes of a sandbox that is saved.
    fn memory_of_paused(&self, sandbox: &Sandbox, inner: &Inner) -> Result<Option<SavedMemory>, NodeError> {
        if inner.state() != NodeState::Saved {
            return Ok(None);
        }
        let no_memory = |reason| NodeError::NoMemory {
            incarnation: sandbox.incarnation.clone(),
            reason: format!("{reason}; {FILES_ARE_KEPT}"),
        };
        let criu = self.criu.get().map_err(no_memory)?;
        let memory = SavedMemory::open(criu, &sandbox.directory.join(MEMORY));
        memory.map(Some).map_err(|error| failed(sandbox, "resume", error))
    }

    /// Processes need the very files that they have mapped. Files alone do with what the template is now.
    async fn template_for_resume(
        self: &Arc<Self>,
        sandbox: &Sandbox,
        inner: &Inner,
        with_memory: bool,
    ) -> Result<Arc<Template>, NodeError> {
        let found = self.template_of_kept(&inner.record).await.map_err(|error| failed(sandbox, "resume", error))?;
        match found {
            Ok(template) => Ok(template),
            Err(error) if with_memory => {
                let reason = format!("its template is no longer there: {}", isopod_wire::error_chain(&error));
                Err(not_restorable(&sandbox.incarnation, &reason))
            }
            Err(_) => {
                let now = self.template_pool(&inner.record.template).await;
                Ok(now.map_err(|error| failed(sandbox, "resume", error))?.template())
            }
        }
    }

    /// The template for new sandboxes, if it is of the same generation, because it may have a zygote.
    pub(super) fn template_of(&self, record: &Record) -> Result<Arc<Template>, TemplateError> {
        let open =
            self.template_pools.open_pools().into_iter().filter(|template_pool| template_pool.key == record.template);
        let open = open.map(|template_pool| template_pool.template());
        let is_same =
            |template: &Arc<Template>| template.name == record.template && template.generation() == record.generation;
        match open.into_iter().find(is_same) {
            Some(template) => Ok(template),
            None => Template::generation_of(&self.provisioner.host.state, &record.template, &record.generation),
        }
    }

    pub(super) fn make_on(
        &self,
        plan: Plan<'_>,
        spec: &SandboxSpec,
        mounting: Mounting,
    ) -> Result<ReadySandbox, ProvisionError> {
        let prepared = self.provisioner.prepare(random_execution_id(), plan)?;
        let ready = self.provisioner.launch(prepared, &spec.limits)?;
        match self.apply_spec(&ready, spec, mounting) {
            Ok(()) => Ok(ready),
            Err(error) => {
                self.provisioner.discard_ready(ready);
                Err(error)
            }
        }
    }

    /// Replaces the old execution. The new record takes over the writable layer before the old one gives it up, so at least
    /// one of them owns it at any moment. While both do, the new one says which it replaces.
    ///
    /// Restored processes go on once what was saved is given up, and so it never meets files that they have changed since.
    async fn replace(
        self: &Arc<Self>,
        old: &Sandbox,
        old_inner: &mut Inner,
        mut ready: ReadySandbox,
        spec: SandboxSpec,
        stopped: Option<Stopped>,
    ) -> Result<Incarnation, NodeError> {
        let directory = ready.directory.clone();
        ready.record.spec = Some(spec);
        ready.record.replaces = Some(old.incarnation.execution.clone());
        ready.record.not_continued = stopped.as_ref().map(|stopped| stopped.stay().to_vec());
        let (socket, remains) = match self.hand_over(old, old_inner, &mut ready) {
            Ok(handed_over) => handed_over,
            Err(error) => {
                self.discard(ready).await;
                return Err(error);
            }
        };
        if let Some(stopped) = stopped {
            stopped.go_on();
            ready.record.not_continued = None;
            // If this fails, the next server has them go on once more.
            let saved = ready.record.save(&directory);
            let _ = saved.inspect_err(
                |error| tracing::warn!(incarnation = %old.incarnation, %error, "could not save the record"),
            );
        }
        let (processes, record) = Processes::of(ready, socket);
        let incarnation = Incarnation { sandbox: old.incarnation.sandbox.clone(), execution: record.execution.clone() };
        let (pidfd, blockable) = (Arc::clone(&processes.pidfd), blockable_exit(&record));
        let inner = Inner { record, processes: Some(processes), ending: false };
        let sandbox = Sandbox::new(incarnation.clone(), directory, inner);
        self.by_id().insert(incarnation.sandbox.clone(), Arc::clone(&sandbox));
        self.watch(sandbox, pidfd, blockable);
        self.remove_replaced(remains).await;
        Ok(incarnation)
    }

    /// Hands the writable layer over to the new execution. Returns the new guest's socket, and what is left of the old one,
    /// whose slot and processes were removed when it was stopped.
    ///
    /// # Errors The layer stays with the old record.
    fn hand_over(
        &self,
        old: &Sandbox,
        old_inner: &mut Inner,
        ready: &mut ReadySandbox,
    ) -> Result<(OwnedFd, Remains), NodeError> {
        let socket = guest_request::open_socket(&ready.directory).map_err(|error| failed(old, "resume", error))?;
        ready.record.area = old_inner.record.area.take();
        let saved = ready.record.save(&ready.directory).map_err(|error| failed(old, "resume", error));
        let given_up = saved.and_then(|()| self.give_up_replaced(old, old_inner));
        if given_up.is_err() {
            old_inner.record.area = ready.record.area.take();
        }
        Ok((socket, given_up?))
    }
}

const FILES_ARE_KEPT: &str = "its files are kept: resume it from them, without its memory (on_resume=\"reboot\")";

fn not_restored(incarnation: &Incarnation, error: &MemoryError) -> NodeError {
    not_restorable(incarnation, &isopod_wire::error_chain(error))
}

/// Its memory may never be restorable again, as after an upgrade of the host's libraries.
fn not_restorable(incarnation: &Incarnation, reason: &str) -> NodeError {
    NodeError::Memory { incarnation: incarnation.clone(), reason: format!("{reason}; {FILES_ARE_KEPT}") }
}

fn not_resumed(sandbox: &Sandbox, error: Box<dyn std::error::Error + Send + Sync>) -> NodeError {
    match error.downcast_ref::<ProvisionError>() {
        Some(ProvisionError::Workspace(WorkspaceError::Serve { source, subtree })) => {
            tracing::warn!(
                subtree,
                error = &*source.source,
                "could not resume a sandbox because its files are not served"
            );
            NodeError::Workspace { incarnation: sandbox.incarnation.clone(), reason: source.reason.clone() }
        }
        _ => failed(sandbox, "resume", error),
    }
}

fn restore(provisioner: &Provisioner, record: &Record) {
    if record.spec.as_ref().is_some_and(|spec| !spec.mounts.is_empty())
        && let Some(served) = provisioner.served_parts()
    {
        provisioner.restore_workspace(record, &served);
    }
}

fn thaw(sandbox: &Sandbox, inner: &mut Inner) -> Result<Incarnation, NodeError> {
    let Some(processes) = &inner.processes else {
        return Err(NodeError::NotFound(sandbox.incarnation.clone()));
    };
    processes.cgroup.thaw().map_err(|error| failed(sandbox, "resume", error))?;
    inner.record.state = NodeState::Running;
    if let Err(error) = save(sandbox, inner, "resume") {
        inner.record.state = NodeState::Frozen;
        undo(sandbox, inner.processes.as_ref().map_or(Ok(()), |processes| processes.cgroup.freeze()));
        return Err(error);
    }
    Ok(sandbox.incarnation.clone())
}
