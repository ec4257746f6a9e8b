//! Running a paused sandbox again.

use std::sync::Arc;

use isopod_wire::node::{Incarnation, NodeError, NodeState, SandboxSpec};

use super::pause::{failed, save, undo};
use super::watch::can_be_held_up;
use super::{Fleet, Life, Processes, Sandbox};
use crate::guest_request;
use crate::provision::{ProvisionError, Provisioner, ReadySandbox};
use crate::record::{Record, random_execution_id};
use crate::start::CREATE_TIMEOUT;
use crate::template::{Template, TemplateError};
use crate::workspace::{Mounting, WorkspaceError};

impl Fleet {
    pub(crate) async fn resume(self: &Arc<Self>, incarnation: &Incarnation) -> Result<Incarnation, NodeError> {
        let sandbox = self.get(incarnation)?;
        let mut life = sandbox.life.lock().await;
        if life.ending {
            return Err(NodeError::NotFound(incarnation.clone()));
        }
        match life.state() {
            NodeState::Running => Ok(incarnation.clone()),
            NodeState::Frozen => {
                let (provisioner, record) = (Arc::clone(&self.provisioner), life.record.clone());
                // Before it runs again; what goes wrong is told there.
                let _turn = sandbox.mounting.lock().await;
                let _ = tokio::task::spawn_blocking(move || restore(&provisioner, &record)).await;
                thaw(&sandbox, &mut life)
            }
            NodeState::Stopped => self.start_again(&sandbox, &mut life).await,
        }
    }

    /// A new life on the files of the old one.
    async fn start_again(self: &Arc<Self>, sandbox: &Arc<Sandbox>, life: &mut Life) -> Result<Incarnation, NodeError> {
        let Some(spec) = life.record.spec.clone() else {
            return Err(NodeError::NotFound(sandbox.incarnation.clone()));
        };
        let fleet = Arc::clone(self);
        let (record, wanted) = (life.record.clone(), spec.clone());
        let made = tokio::task::spawn_blocking(move || {
            let template = fleet.template_of(&record)?;
            let ready = fleet.make_on(&template, &wanted, record.area.as_deref(), Mounting::NextLife)?;
            fleet.provisioner.bring_up(&ready, CREATE_TIMEOUT);
            Ok::<_, Box<dyn std::error::Error + Send + Sync>>(ready)
        });
        let made = made.await.map_err(|error| failed(sandbox, "resume", error))?;
        let ready = made.map_err(|error| not_resumed(sandbox, error))?;
        if let Err(error) = self.init_guest(&ready, &spec).await {
            self.discard(ready).await;
            return Err(failed(sandbox, "resume", error));
        }
        self.replace(sandbox, life, ready, spec)
    }

    /// The one that new sandboxes get, as long as it is the same generation: it may have a zygote.
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
        template: &Arc<Template>,
        spec: &SandboxSpec,
        area: Option<&str>,
        mounting: Mounting,
    ) -> Result<ReadySandbox, ProvisionError> {
        let prepared = self.provisioner.prepare(random_execution_id(), template, &spec.limits, spec.features, area)?;
        let ready = self.provisioner.launch(prepared, &spec.limits)?;
        match self.apply_spec(&ready, spec, mounting) {
            Ok(()) => Ok(ready),
            Err(error) => {
                self.provisioner.discard_ready(ready);
                Err(error)
            }
        }
    }

    /// The new record takes over the writable layer, and then the old one goes: at every moment at least one owns it.
    fn replace(
        self: &Arc<Self>,
        old: &Sandbox,
        old_life: &mut Life,
        mut ready: ReadySandbox,
        spec: SandboxSpec,
    ) -> Result<Incarnation, NodeError> {
        let directory = ready.directory.clone();
        ready.record.spec = Some(spec);
        ready.record.area = old_life.record.area.clone();
        let opened = guest_request::open_socket(&directory);
        let socket = match opened.and_then(|socket| ready.record.save(&directory).map(|()| socket)) {
            Ok(socket) => socket,
            Err(error) => {
                // The layer stays with the old record.
                ready.record.area = None;
                let provisioner = Arc::clone(&self.provisioner);
                tokio::task::spawn_blocking(move || provisioner.discard_ready(ready));
                return Err(failed(old, "resume", error));
            }
        };
        let (processes, record) = Processes::of(ready, socket);
        let incarnation = Incarnation { sandbox: old.incarnation.sandbox.clone(), execution: record.execution.clone() };
        let (pidfd, held_up) = (Arc::clone(&processes.pidfd), can_be_held_up(&record));
        let life = tokio::sync::Mutex::new(Life { record, processes: Some(processes), ending: false });
        let sandbox =
            Arc::new(Sandbox { incarnation: incarnation.clone(), directory, life, mounting: Default::default() });
        self.sandboxes().insert(incarnation.sandbox.clone(), Arc::clone(&sandbox));
        old_life.ending = true;
        // Only the directory: slot and processes went when it was stopped.
        if let Err(error) = std::fs::remove_dir_all(&old.directory) {
            tracing::warn!(incarnation = %old.incarnation, %error, "could not remove the record of an earlier life");
        }
        self.watch(sandbox, pidfd, held_up);
        Ok(incarnation)
    }
}

fn not_resumed(sandbox: &Sandbox, error: Box<dyn std::error::Error + Send + Sync>) -> NodeError {
    match error.downcast_ref::<ProvisionError>() {
        Some(ProvisionError::Workspace(WorkspaceError::Serve { source, subtree })) => {
            tracing::warn!(
                subtree,
                error = &*source.source,
                "a sandbox was not resumed, for it cannot be shown its files"
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

fn thaw(sandbox: &Sandbox, life: &mut Life) -> Result<Incarnation, NodeError> {
    let Some(processes) = &life.processes else {
        return Err(NodeError::NotFound(sandbox.incarnation.clone()));
    };
    processes.cgroup.thaw().map_err(|error| failed(sandbox, "resume", error))?;
    life.record.state = NodeState::Running;
    if let Err(error) = save(sandbox, life, "resume") {
        life.record.state = NodeState::Frozen;
        undo(sandbox, life.processes.as_ref().map_or(Ok(()), |processes| processes.cgroup.freeze()));
        return Err(error);
    }
    Ok(sandbox.incarnation.clone())
}
