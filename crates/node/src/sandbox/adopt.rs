//! Adopts the sandboxes of an earlier server.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use isopod_checkpoint::{MEMORY, go_on};
use isopod_isolation::cgroup::SandboxCgroup;
use isopod_wire::ExecutionId;
use isopod_wire::node::{EndReason, Incarnation, NodeEvent, NodeState};

use super::build_recipe::is_of_a_build;
use super::snapshot::Snapshot;
use super::watch::blockable_exit;
use super::{Inner, Processes, Sandbox, Sandboxes};
use crate::boot::{ProcessIdentity, boot_id};
use crate::disposal::{Remains, dispose, stop};
use crate::guest_request::{self, GUEST_SOCKET};
use crate::record::Record;
use crate::recycle::SandboxNetwork;
use crate::slot::Slot;
use crate::sweep::remains_of;
use crate::template::Template;

/// What to do with a record.
enum Decision {
    /// Its first process runs.
    Adopt(Record, ProcessIdentity),
    /// It has files and no processes.
    Keep(Record),
    /// It is a snapshot.
    Snapshot(Record),
    /// It is a start image.
    StartImage(Record),
    /// It had an owner and is gone.
    Ended(Record, EndReason),
    /// It never had an owner, or it cannot be read.
    Remove,
}

/// The pause before each round of adoption. What fails for lack of descriptors or memory, or because the kernel is
/// busy, may work a moment later.
const PAUSES: [Duration; 4] =
    [Duration::ZERO, Duration::from_millis(100), Duration::from_millis(500), Duration::from_secs(2)];

impl Sandboxes {
    /// # Errors If a record cannot be read. Its sandbox is not touched then.
    pub(crate) async fn adopt(self: &Arc<Self>) -> io::Result<()> {
        self.recover_packed_memory().await;
        let executions = self.provisioner.home.executions()?;
        for execution in &executions {
            self.settle_replacement(execution).await;
        }
        let executions = self.provisioner.home.executions()?;
        let failed = in_rounds(executions, &PAUSES, |execution| async move { self.adopt_one(&execution).await }).await;
        for (execution, error) in failed {
            self.give_up(&execution, error).await?;
        }
        Ok(())
    }

    /// May be called again after an error, because nothing is lost.
    async fn adopt_one(self: &Arc<Self>, execution: &ExecutionId) -> io::Result<()> {
        let directory = self.provisioner.home.execution_directory(execution);
        match decide(Record::load(&directory))? {
            Decision::Adopt(record, init) => match guest_request::open_socket(&directory) {
                Ok(socket) => self.take_over(record, &init, socket)?,
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    tracing::error!(%execution, path = %directory.join(GUEST_SOCKET).display(), "the guest's socket is gone; ending the sandbox");
                    self.end(record, EndReason::GuestUnreachable).await;
                }
                Err(error) => return Err(error),
            },
            Decision::Keep(record) => self.keep_stopped(record)?,
            Decision::Snapshot(record) => self.snapshots.add(Snapshot::complete(record, directory)),
            Decision::StartImage(record) => self.keep_start_image(record, &directory).await,
            Decision::Ended(record, reason) => self.end(record, reason).await,
            Decision::Remove => self.remove(execution).await,
        }
        Ok(())
    }

    /// Called after several attempts.
    async fn give_up(&self, execution: &ExecutionId, error: io::Error) -> io::Result<()> {
        let directory = self.provisioner.home.execution_directory(execution);
        let Ok(record) = Record::load(&directory) else {
            // The owner of the sandbox is unknown. A person must look before anything is removed.
            let text = format!("the record in {} cannot be read: {error}", directory.display());
            return Err(io::Error::new(error.kind(), text));
        };
        tracing::error!(%execution, %error, "cannot adopt a sandbox; ending it");
        self.end(record, EndReason::GuestUnreachable).await;
        Ok(())
    }

    async fn end(&self, record: Record, reason: EndReason) {
        self.remove(&record.execution).await;
        if let Some(spec) = record.spec {
            let incarnation = Incarnation { sandbox: spec.sandbox, execution: record.execution };
            // The receiver belongs to this node.
            let _ = self.events.send(NodeEvent::Ended { incarnation, reason });
        }
    }

    async fn remove(&self, execution: &ExecutionId) {
        let provisioner = Arc::clone(&self.provisioner);
        let remains = remains_of(&provisioner.home, execution);
        let _ = tokio::task::spawn_blocking(move || dispose(&provisioner.host, &remains)).await;
    }

    fn take_over(self: &Arc<Self>, mut record: Record, init: &ProcessIdentity, socket: OwnedFd) -> io::Result<()> {
        let Some(slot) = record.slot else { return Err(io::ErrorKind::InvalidData.into()) };
        // It has just ended. The next round handles that.
        let Some(pidfd) = init.open() else { return Err(io::ErrorKind::NotFound.into()) };
        let processes = Processes {
            cgroup: self.provisioner.host.cgroups.group(record.execution.as_str()),
            slot,
            network: SandboxNetwork { netns: File::open(format!("/proc/{}/ns/net", init.pid))?.into(), counters: None },
            sockets: Arc::default(),
            pidfd: Arc::new(pidfd),
            _template: self.open_template(&record),
            socket,
        };
        let (pidfd, blockable) = (Arc::clone(&processes.pidfd), blockable_exit(&record));
        // CRIU may still be at work on its processes, which has to end first.
        if !record.saving {
            self.finish_pause(&mut record, &processes.cgroup)?;
        }
        self.renew_policy(&record, slot)?;
        if let Some(stay) = record.not_continued.take() {
            go_on(&processes.cgroup, init.pid, stay);
            record.save(&self.provisioner.home.execution_directory(&record.execution))?;
        }
        let (is_saving, is_paused) = (record.saving, record.state == NodeState::Frozen);
        let sandbox = self.enter_record(record, Some(processes))?;
        if is_saving {
            self.finish_save(&sandbox);
        }
        if is_paused {
            self.save_memory_later(&sandbox.incarnation);
        }
        self.watch(sandbox, pidfd, blockable);
        Ok(())
    }

    /// Applies the policy again. The earlier server applied its own settings, and ours may be stricter.
    fn renew_policy(&self, record: &Record, slot: Slot) -> io::Result<()> {
        let Some(spec) = &record.spec else { return Ok(()) };
        let renewed = self.provisioner.host.network.set_policy(slot.on_network(), &spec.network);
        renewed.map_err(io::Error::other)
    }

    /// Makes the processes match the record. A server that died during a pause or resume may have changed one but not
    /// the other.
    fn finish_pause(&self, record: &mut Record, cgroup: &SandboxCgroup) -> io::Result<()> {
        if record.state == NodeState::Running {
            // On a host without a freezer they were never frozen.
            let _ =
                cgroup.thaw().inspect_err(|error| tracing::debug!(execution = %record.execution, %error, "not thawed"));
            return Ok(());
        }
        if let Err(error) = cgroup.freeze() {
            tracing::warn!(execution = %record.execution, %error, "cannot freeze a paused sandbox again; it keeps running");
            record.state = NodeState::Running;
            record.save(&self.provisioner.home.execution_directory(&record.execution))?;
        }
        Ok(())
    }

    /// Its layers must not be pruned, whoever created it.
    fn open_template(&self, record: &Record) -> Option<Arc<Template>> {
        self.template_of(record)
            .inspect_err(|error| tracing::warn!(execution = %record.execution, %error, "cannot lock its layers"))
            .ok()
    }

    fn keep_stopped(&self, mut record: Record) -> io::Result<()> {
        stop(&self.provisioner.host, &Remains::of(&record, &self.provisioner.home));
        if record.state != NodeState::Saved {
            record.state = NodeState::Stopped;
            // A dump that a reboot has interrupted.
            record.saving = false;
            record.stopped_before_saving.clear();
            let unfinished = self.provisioner.home.execution_directory(&record.execution).join(MEMORY);
            let _ = std::fs::remove_dir_all(unfinished);
        }
        record.init = None;
        record.slot = None;
        record.owner = None;
        // If this fails, the record on disk leads to the same result at the next start.
        let saved = record.save(&self.provisioner.home.execution_directory(&record.execution));
        let _ = saved
            .inspect_err(|error| tracing::warn!(execution = %record.execution, %error, "could not save the record"));
        self.enter_record(record, None).map(drop)
    }

    fn enter_record(&self, record: Record, processes: Option<Processes>) -> io::Result<Arc<Sandbox>> {
        let Some(spec) = &record.spec else { return Err(io::ErrorKind::InvalidData.into()) };
        let incarnation = Incarnation { sandbox: spec.sandbox.clone(), execution: record.execution.clone() };
        let directory = self.provisioner.home.execution_directory(&record.execution);
        let sandbox = Sandbox::new(incarnation.clone(), directory, Inner { record, processes, ending: false });
        self.by_id().insert(incarnation.sandbox, Arc::clone(&sandbox));
        Ok(sandbox)
    }
}

/// Calls `adopt` for each execution, and again for those that failed. Returns those that never succeeded.
async fn in_rounds<Adopting: Future<Output = io::Result<()>>>(
    executions: Vec<ExecutionId>,
    pauses: &[Duration],
    adopt: impl Fn(ExecutionId) -> Adopting,
) -> Vec<(ExecutionId, io::Error)> {
    let mut failed: Vec<(ExecutionId, io::Error)> = Vec::new();
    let mut waiting = executions;
    for pause in pauses {
        tokio::time::sleep(*pause).await;
        failed.clear();
        for execution in waiting {
            if let Err(error) = adopt(execution.clone()).await {
                tracing::warn!(%execution, %error, "could not adopt a sandbox yet");
                failed.push((execution, error));
            }
        }
        if failed.is_empty() {
            break;
        }
        waiting = failed.iter().map(|(execution, _)| execution.clone()).collect();
    }
    failed
}

fn decide(loaded: io::Result<Record>) -> io::Result<Decision> {
    let record = match loaded {
        Ok(record) => record,
        Err(error) if is_no_record(&error) => return Ok(Decision::Remove),
        // A disk error or a lack of descriptors says nothing about the contents.
        Err(error) => return Err(error),
    };
    if record.start_image.is_some() && record.state == NodeState::Saved {
        return Ok(Decision::StartImage(record));
    }
    if record.spec.as_ref().is_none_or(is_of_a_build) {
        return Ok(Decision::Remove);
    }
    if record.snapshot.is_some() {
        return Ok(Decision::Snapshot(record));
    }
    let same_boot = match &record.init {
        Some(init) => init.boot_id == boot_id()?,
        None => false,
    };
    Ok(match (record.state, record.init.clone()) {
        (NodeState::Stopped | NodeState::Saved, _) => Decision::Keep(record),
        (_, Some(init)) if init.open().is_some() => Decision::Adopt(record, init),
        // Memory does not survive a reboot, but files do.
        (NodeState::Frozen, Some(_)) if !same_boot => Decision::Keep(record),
        (_, Some(_)) if !same_boot => Decision::Ended(record, EndReason::HostRebooted),
        _ => Decision::Ended(record, EndReason::GuestDied),
    })
}

/// Whether an execution is there after a restart of the server or the host: its processes run, or it needs none.
pub(super) fn lives(record: &Record) -> io::Result<bool> {
    Ok(matches!(decide(Ok(record.clone()))?, Decision::Adopt(..) | Decision::Keep(_)))
}

/// Whether the record was never written completely, or nothing is left of it.
fn is_no_record(error: &io::Error) -> bool {
    use io::ErrorKind::{InvalidData, NotADirectory, NotFound, UnexpectedEof};
    matches!(error.kind(), NotFound | NotADirectory | InvalidData | UnexpectedEof)
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    fn ids(names: &[&str]) -> Vec<ExecutionId> {
        names.iter().map(|name| name.parse().unwrap()).collect()
    }

    #[tokio::test]
    async fn what_fails_for_a_moment_is_tried_again_and_nothing_else_is() {
        let tried = RefCell::new(Vec::new());
        // The second one fails twice, the third one always.
        let adopt = |execution: ExecutionId| {
            tried.borrow_mut().push(execution.clone());
            let times = tried.borrow().iter().filter(|other| **other == execution).count();
            let works = execution.as_str() == "x1" || (execution.as_str() == "x2" && times > 2);
            let result = if works { Ok(()) } else { Err(io::Error::from_raw_os_error(24)) };
            async move { result }
        };
        let failed = in_rounds(ids(&["x1", "x2", "x3"]), &[Duration::ZERO; 4], adopt).await;
        let never: Vec<_> =
            failed.iter().map(|(execution, error)| (execution.as_str(), error.raw_os_error())).collect();
        assert_eq!(never, [("x3", Some(24))]);
        assert_eq!(tried.into_inner(), ids(&["x1", "x2", "x3", "x2", "x3", "x2", "x3", "x3"]));
    }

    #[test]
    fn a_record_that_cannot_be_read_at_the_moment_is_not_one_that_is_damaged() {
        let directory = tempfile::tempdir().unwrap();
        let decision = |directory: &std::path::Path| decide(Record::load(directory));
        assert!(matches!(decision(directory.path()), Ok(Decision::Remove)), "there is none");
        let path = directory.path().join("record.json");
        for text in ["", "{", "[]"] {
            std::fs::write(&path, text).unwrap();
            assert!(matches!(decision(directory.path()), Ok(Decision::Remove)), "{text:?} is none");
        }
        std::fs::remove_file(&path).unwrap();
        std::fs::create_dir(&path).unwrap();
        assert!(decision(directory.path()).is_err(), "an error of the disk says nothing");
        assert!(decide(Err(io::Error::from_raw_os_error(24))).is_err(), "nor does a want of descriptors");
    }
}
