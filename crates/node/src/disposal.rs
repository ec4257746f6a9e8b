//! Removes everything that belongs to an execution. Each step may find its work already done, so removal can be
//! repeated after a crash, by another process, or twice at once.

use std::path::{Path, PathBuf};
use std::{fs, io};

use isopod_checkpoint::MEMORY;
use isopod_wire::ExecutionId;
use isopod_wire::node::NodeState;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Signal, pidfd_send_signal};

use crate::boot::ProcessIdentity;
use crate::home::{Home, all_executions, all_records};
use crate::host::Host;
use crate::record::Record;
use crate::recycle::SandboxNetwork;
use crate::slot::Slot;
use crate::workspace::Aborters;

/// How long to wait for killed processes to exit. After that, removing the cgroups is tried anyway.
const EXIT_DEADLINE: Timespec = Timespec { tv_sec: 5, tv_nsec: 0 };

/// What may exist of an execution.
#[derive(Clone, Debug)]
pub(crate) struct Remains {
    pub(crate) execution: ExecutionId,
    pub(crate) init: Option<ProcessIdentity>,
    slot: Option<Slot>,
    /// The slot of the zygote that owns its namespaces.
    owner: Option<Slot>,
    /// It may be a zygote, whose slot is kept for the sandboxes that it owns.
    may_own: bool,
    /// Its writable layer, unless that belongs to another execution.
    pub(crate) area: Option<String>,
    directory: PathBuf,
    /// Its processes may be waiting for the workspace.
    has_mounts: bool,
    /// Its processes may be waiting for each other, behind a FUSE file system that one of them serves.
    has_fuse: bool,
    /// Its processes may be saved in its directory.
    may_have_memory: bool,
}

impl Remains {
    /// From its record. The area is the one that the record names. A record that was never saved names its own.
    pub(crate) fn of(record: &Record, home: &Home) -> Self {
        let directory = home.execution_directory(&record.execution);
        Self {
            execution: record.execution.clone(),
            init: record.init.clone(),
            slot: record.slot,
            owner: record.owner,
            may_own: record.is_zygote,
            area: record.area.clone(),
            directory,
            has_mounts: record.spec.as_ref().is_some_and(|spec| !spec.mounts.is_empty()),
            has_fuse: record.spec.as_ref().is_some_and(|spec| spec.features.fuse),
            // A record that gives its memory up, to the execution that replaces it, names no owner any more.
            may_have_memory: record.state != NodeState::Running
                || record.spec.is_some()
                || record.snapshot.is_some()
                || record.start_image.is_some(),
        }
    }

    /// For an execution whose record cannot be read. The layer with its name may be that of a later execution.
    pub(crate) fn unknown(execution: ExecutionId, home: &Home, has_given_up_its_area: bool) -> Self {
        let directory = home.execution_directory(&execution);
        Self {
            area: (!has_given_up_its_area).then(|| execution.as_str().to_owned()),
            init: None,
            slot: None,
            owner: None,
            may_own: true,
            execution,
            directory,
            has_mounts: false,
            has_fuse: false,
            may_have_memory: true,
        }
    }

    /// For an execution of which only things outside its home were found.
    pub(crate) fn stray(execution: ExecutionId, with_area: bool) -> Self {
        Self {
            area: with_area.then(|| execution.as_str().to_owned()),
            init: None,
            slot: None,
            owner: None,
            may_own: true,
            execution,
            directory: PathBuf::new(),
            has_mounts: false,
            has_fuse: false,
            may_have_memory: false,
        }
    }
}

/// Ends all processes and removes everything, the record last.
pub(crate) fn dispose(host: &Host, remains: &Remains) {
    dispose_with(host, remains, None);
}

/// As [`dispose`], with the sandbox's network, which another sandbox may get if it was never used.
pub(crate) fn dispose_with(host: &Host, remains: &Remains, network: Option<SandboxNetwork>) {
    let all_ended = end_processes(host, remains);
    if !remains.may_own {
        release_slots(host, remains, network.filter(|_| all_ended));
    }
    remove_area(host, remains);
    remove_directory(host, remains);
    // A zygote and the last of its sandboxes may be removed at the same time. Each looks for the other after its own
    // record is gone, so that one of them releases the zygote's slot.
    if remains.may_own {
        release_slots(host, remains, None);
    }
    release_owner_slot(host, remains);
}

/// As [`dispose`], but keeps the record and the writable layer, because the sandbox is stopped and not gone.
pub(crate) fn stop(host: &Host, remains: &Remains) {
    end_processes(host, remains);
    release_slots(host, remains, None);
    sync_area(host, remains);
}

/// Syncs the files of a stopped sandbox. While a sandbox runs, nothing is synced, because its overlays are volatile.
fn sync_area(host: &Host, remains: &Remains) {
    let Some(area) = &remains.area else { return };
    if let Err(error) = host.disk.sync_area(area) {
        tracing::warn!(execution = %remains.execution, error = &error as &dyn std::error::Error, "could not sync its files");
    }
}

/// Returns true if certainly no process is left.
fn end_processes(host: &Host, remains: &Remains) -> bool {
    let init = remains.init.as_ref().and_then(ProcessIdentity::open_remains);
    let group = host.cgroups.group(remains.execution.as_str());
    let pid = remains.init.as_ref().filter(|_| remains.has_mounts && init.is_some()).map(|init| init.pid);
    let aborters = pid.map(|pid| Aborters::of(pid, &group)).unwrap_or_default();
    if let Some(pidfd) = &init {
        // It may have just ended.
        let _ = pidfd_send_signal(pidfd, Signal::KILL);
    }
    warn_on(&remains.execution, "kill its processes", group.kill().or_else(ignore_missing));
    // A killed process that waits for a reply to certain FUSE calls ends only when the connection is aborted.
    aborters.abort();
    // Nothing is left that could mount another one.
    if let Some(slot) = remains.slot.filter(|_| remains.has_fuse) {
        Aborters::owned_by(slot.ids()).abort();
    }
    if let Some(pidfd) = &init {
        // PID 1 is the last process to go, so wait for it. Without this, removing the cgroups would fail until they are
        // empty.
        let _ = poll(&mut [PollFd::new(pidfd, PollFlags::IN)], Some(&EXIT_DEADLINE));
    }
    let removed = group.remove();
    let all_ended = removed.is_ok();
    warn_on(&remains.execution, "remove its cgroups", removed);
    all_ended
}

fn ignore_missing(error: isopod_isolation::cgroup::CgroupError) -> Result<(), isopod_isolation::cgroup::CgroupError> {
    if error.io().kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error) }
}

fn release_slots(host: &Host, remains: &Remains, mut network: Option<SandboxNetwork>) {
    let slots = match remains.slot {
        Some(slot) => vec![slot],
        // The record was written before the claim, or there is none.
        None => {
            let claims = host.claimed_slots().unwrap_or_default();
            let own = claims.into_iter().filter(|(_, execution)| execution == remains.execution.as_str());
            own.map(|(slot, _)| slot).collect()
        }
    };
    for slot in slots {
        if remains.may_own && owns_sandboxes(host, slot) {
            tracing::debug!(execution = %remains.execution, slot = slot.0, "keeping its slot for its sandboxes");
            continue;
        }
        // Remove the policy now, before the slot gets its next user.
        warn_on(&remains.execution, "clear its policy", host.network.clear_policy(slot.on_network()));
        // The network, if there is one, belongs to the slot in the record.
        let network = network.take_if(|_| remains.slot == Some(slot));
        host.release_slot(slot, remains.execution.as_str(), network);
    }
}

/// Whether a sandbox names this slot as its owner's. If that is unknown, the slot is kept until the next sweep.
fn owns_sandboxes(host: &Host, slot: Slot) -> bool {
    all_records(&host.state.homes()).map_or(true, |records| records.iter().any(|record| record.owner == Some(slot)))
}

/// Releases the slot of a zygote that was removed earlier, if this was the last of its sandboxes.
fn release_owner_slot(host: &Host, remains: &Remains) {
    let Some(slot) = remains.owner else { return };
    let Some(claim) = slot.claim_text() else { return };
    let Some(zygote) = claim.strip_prefix(&host.claim("")) else { return };
    let is_beside = remains.directory.parent().is_some_and(|boxes| boxes.join(zygote).exists());
    if is_beside || owns_sandboxes(host, slot) {
        return;
    }
    // A record exists before the claim, so these include any execution that has claimed the slot since.
    let has_record = |name: &str| {
        all_executions(&host.state).map_or(true, |known| known.iter().any(|execution| execution.as_str() == name))
    };
    if !has_record(zygote) {
        host.release_slot(slot, zygote, None);
    }
}

fn remove_area(host: &Host, remains: &Remains) {
    let Some(area) = &remains.area else { return };
    match host.disk.area(area) {
        Ok(_) => warn_on(&remains.execution, "remove its files", host.disk.remove_area(area)),
        Err(_) => tracing::trace!(execution = %remains.execution, "has no files"),
    }
}

fn remove_directory(host: &Host, remains: &Remains) {
    if remains.may_have_memory {
        // Or the directory would be kept for another sandbox with it.
        warn_on(&remains.execution, "remove its memory", remove_memory(&remains.directory));
    }
    if !remains.directory.as_os_str().is_empty() {
        warn_on(&remains.execution, "remove its record", host.recycled_directories.remove(&remains.directory));
    }
}

/// Under another name, because somebody who packs or unpacks it now could put one more file into it.
pub(crate) fn remove_memory(directory: &Path) -> io::Result<()> {
    let gone = directory.join("memory.gone");
    let unless_missing = |result: io::Result<()>| match result {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    };
    unless_missing(fs::remove_dir_all(&gone))?;
    match unless_missing(fs::rename(directory.join(MEMORY), &gone)) {
        Ok(()) => unless_missing(fs::remove_dir_all(&gone)),
        // The disk may be too full for that.
        Err(_) => unless_missing(fs::remove_dir_all(directory.join(MEMORY))),
    }
}

/// Disposal continues after a failure. The next sweep finds what is left.
fn warn_on<E: std::error::Error + 'static>(execution: &ExecutionId, what: &str, result: Result<(), E>) {
    if let Err(error) = result {
        tracing::warn!(%execution, error = &error as &dyn std::error::Error, "could not {what}");
    }
}
