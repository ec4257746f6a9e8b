//! Running a paused sandbox again.

use std::sync::Arc;

use isopod_wire::node::{Incarnation, NodeError, NodeState, SandboxSpec, TEAM_LABEL};

use super::built::key_for;
use super::pause::{failed, save};
use super::{Fleet, Life, Processes, Sandbox};
use crate::blank::{Blank, MakeError};
use crate::node::random_execution_id;
use crate::record::Record;
use crate::start::CREATE_PATIENCE;
use crate::template::{Template, TemplateError};

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
                let (workshop, record) = (Arc::clone(&self.workshop), life.record.clone());
                // Before it runs again; what goes wrong is told there.
                let _ = tokio::task::spawn_blocking(move || workshop.restore_workspace(&record)).await;
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
            let blank = fleet.make_on(&template, &wanted, record.area.as_deref())?;
            fleet.workshop.bring_up(&blank, CREATE_PATIENCE);
            Ok::<_, Box<dyn std::error::Error + Send + Sync>>(blank)
        });
        let made = made.await.map_err(|error| failed(sandbox, "resume", error))?;
        let blank = made.map_err(|error| failed(sandbox, "resume", error))?;
        if let Err(error) = self.introduce(&blank, &spec).await {
            self.discard(blank).await;
            return Err(failed(sandbox, "resume", error));
        }
        self.replace(sandbox, life, blank, spec)
    }

    /// The one that new sandboxes get, as long as it is the same generation: it may have a zygote.
    pub(super) fn template_of(&self, record: &Record) -> Result<Arc<Template>, TemplateError> {
        // Not that of another team: its zygote is theirs.
        let team = record.spec.as_ref().and_then(|spec| spec.labels.get(TEAM_LABEL)).map_or("", String::as_str);
        let keys = [record.template.clone(), key_for(&record.template, team)];
        let open = self.kinds.open_kinds().into_iter().filter(|kind| keys.contains(&kind.key));
        let open = open.map(|kind| kind.template());
        let is_same =
            |template: &Arc<Template>| template.name == record.template && template.generation() == record.generation;
        match open.into_iter().find(is_same) {
            Some(template) => Ok(template),
            None => Template::generation_of(&self.workshop.host.state, &record.template, &record.generation),
        }
    }

    pub(super) fn make_on(
        &self,
        template: &Arc<Template>,
        spec: &SandboxSpec,
        area: Option<&str>,
    ) -> Result<Blank, MakeError> {
        let prepared = self.workshop.prepare(random_execution_id(), template, &spec.limits, area)?;
        let blank = self.workshop.launch(prepared, &spec.limits)?;
        match self.equip(&blank, spec) {
            Ok(()) => Ok(blank),
            Err(error) => {
                self.workshop.discard_blank(blank);
                Err(error)
            }
        }
    }

    /// The new record takes over the writable layer, and then the old one goes: at every moment at least one owns it.
    fn replace(
        self: &Arc<Self>,
        old: &Sandbox,
        old_life: &mut Life,
        blank: Blank,
        spec: SandboxSpec,
    ) -> Result<Incarnation, NodeError> {
        let directory = blank.directory.clone();
        let (processes, mut record) = Processes::of(blank).map_err(|error| failed(old, "resume", error))?;
        record.spec = Some(spec);
        record.area = old_life.record.area.clone();
        record.save(&directory).map_err(|error| failed(old, "resume", error))?;
        let incarnation = Incarnation { sandbox: old.incarnation.sandbox.clone(), execution: record.execution.clone() };
        let pidfd = Arc::clone(&processes.pidfd);
        let life = tokio::sync::Mutex::new(Life { record, processes: Some(processes), ending: false });
        let sandbox = Arc::new(Sandbox { incarnation: incarnation.clone(), directory, life });
        self.sandboxes().insert(incarnation.sandbox.clone(), Arc::clone(&sandbox));
        old_life.ending = true;
        // Only the directory: slot and processes went when it was stopped.
        if let Err(error) = std::fs::remove_dir_all(&old.directory) {
            tracing::warn!(incarnation = %old.incarnation, %error, "could not remove the record of an earlier life");
        }
        self.watch(sandbox, pidfd);
        Ok(incarnation)
    }
}

fn thaw(sandbox: &Sandbox, life: &mut Life) -> Result<Incarnation, NodeError> {
    let Some(processes) = &life.processes else {
        return Err(NodeError::NotFound(sandbox.incarnation.clone()));
    };
    processes.cgroup.thaw().map_err(|error| failed(sandbox, "resume", error))?;
    life.record.state = NodeState::Running;
    save(sandbox, life, "resume")?;
    Ok(sandbox.incarnation.clone())
}
