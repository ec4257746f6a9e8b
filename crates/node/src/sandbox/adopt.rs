//! Taking over the sandboxes of an earlier server.

use std::fs::File;
use std::io;
use std::sync::Arc;

use isopod_wire::ExecutionId;
use isopod_wire::node::{EndReason, Incarnation, NodeEvent, NodeState};

use super::build::is_of_a_build;
use super::{Fleet, Life, Processes, Sandbox};
use crate::boot::{ProcessIdentity, boot_id};
use crate::disposal::{Remains, dispose, stop};
use crate::record::Record;
use crate::spare::SandboxNetwork;
use crate::sweep::remains_of;
use crate::template::Template;

/// What becomes of a record.
enum Fate {
    /// Its first process runs.
    Adopt(Record, ProcessIdentity),
    /// It has files and no processes.
    Keep(Record),
    /// It had an owner and is gone.
    Ended(Record, EndReason),
    /// Nobody was ever given it, or it cannot be read.
    Remove,
}

impl Fleet {
    pub(crate) async fn adopt(self: &Arc<Self>) -> io::Result<()> {
        for execution in self.workshop.home.executions()? {
            self.adopt_one(&execution).await?;
        }
        Ok(())
    }

    async fn adopt_one(self: &Arc<Self>, execution: &ExecutionId) -> io::Result<()> {
        let directory = self.workshop.home.box_directory(execution);
        let adopted = match decide(Record::load(&directory))? {
            Fate::Adopt(record, init) => self.take_over(record, &init),
            Fate::Keep(record) => self.keep_stopped(record),
            Fate::Ended(record, reason) => {
                self.remove(execution).await;
                let incarnation =
                    record.spec.map(|spec| Incarnation { sandbox: spec.sandbox, execution: execution.clone() });
                incarnation.map_or(Ok(()), |incarnation| {
                    // The reader is ourselves.
                    let _ = self.events.send(NodeEvent::Ended { incarnation, reason });
                    Ok(())
                })
            }
            Fate::Remove => {
                self.remove(execution).await;
                Ok(())
            }
        };
        if let Err(error) = adopted {
            tracing::warn!(%execution, %error, "could not adopt a sandbox, it is removed");
            self.remove(execution).await;
        }
        Ok(())
    }

    async fn remove(&self, execution: &ExecutionId) {
        let workshop = Arc::clone(&self.workshop);
        let remains = remains_of(&workshop.home, execution);
        let _ = tokio::task::spawn_blocking(move || dispose(&workshop.host, &remains)).await;
    }

    fn take_over(self: &Arc<Self>, record: Record, init: &ProcessIdentity) -> io::Result<()> {
        let (Some(slot), Some(pidfd)) = (record.slot, init.open()) else { return Err(io::ErrorKind::NotFound.into()) };
        let directory = self.workshop.home.box_directory(&record.execution);
        let processes = Processes {
            cgroup: self.workshop.host.cgroups.group(record.execution.as_str()),
            slot,
            network: SandboxNetwork { netns: File::open(format!("/proc/{}/ns/net", init.pid))?.into(), witness: None },
            sockets: Arc::default(),
            pidfd: Arc::new(pidfd),
            _template: self.open_template(&record),
            directory: File::open(&directory)?,
        };
        let pidfd = Arc::clone(&processes.pidfd);
        // A frozen one gets it when it is thawed: nothing in there moves now.
        if record.state == NodeState::Running {
            self.workshop.restore_workspace(&record);
        }
        let sandbox = self.enter_record(record, Some(processes))?;
        self.watch(sandbox, pidfd);
        Ok(())
    }

    /// Its layers must not be pruned, whoever made it.
    fn open_template(&self, record: &Record) -> Option<Arc<Template>> {
        self.template_of(record)
            .inspect_err(|error| tracing::warn!(execution = %record.execution, %error, "its layers cannot be held"))
            .ok()
    }

    fn keep_stopped(&self, mut record: Record) -> io::Result<()> {
        stop(&self.workshop.host, &Remains::of(&record, &self.workshop.home));
        record.state = NodeState::Stopped;
        record.init = None;
        record.slot = None;
        record.save(&self.workshop.home.box_directory(&record.execution))?;
        self.enter_record(record, None).map(drop)
    }

    fn enter_record(&self, record: Record, processes: Option<Processes>) -> io::Result<Arc<Sandbox>> {
        let Some(spec) = &record.spec else { return Err(io::ErrorKind::InvalidData.into()) };
        let incarnation = Incarnation { sandbox: spec.sandbox.clone(), execution: record.execution.clone() };
        let directory = self.workshop.home.box_directory(&record.execution);
        let life = tokio::sync::Mutex::new(Life { record, processes, ending: false });
        let sandbox = Arc::new(Sandbox { incarnation: incarnation.clone(), directory, life });
        self.sandboxes().insert(incarnation.sandbox, Arc::clone(&sandbox));
        Ok(sandbox)
    }
}

fn decide(loaded: io::Result<Record>) -> io::Result<Fate> {
    let Ok(record) = loaded else { return Ok(Fate::Remove) };
    if record.spec.as_ref().is_none_or(is_of_a_build) {
        return Ok(Fate::Remove);
    }
    let same_boot = match &record.init {
        Some(init) => init.boot_id == boot_id()?,
        None => false,
    };
    Ok(match (record.state, record.init.clone()) {
        (NodeState::Stopped, _) => Fate::Keep(record),
        (_, Some(init)) if init.open().is_some() => Fate::Adopt(record, init),
        // Memory does not outlive the kernel, files do.
        (NodeState::Frozen, Some(_)) if !same_boot => Fate::Keep(record),
        (_, Some(_)) if !same_boot => Fate::Ended(record, EndReason::HostRebooted),
        _ => Fate::Ended(record, EndReason::GuestDied),
    })
}
