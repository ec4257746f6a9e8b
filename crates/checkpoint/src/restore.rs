//! Restores saved processes in a sandbox that has none yet.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt as _, chown};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use isopod_guest_client::checkpoint::Checkpoint;
use isopod_isolation::backend::Backend;
use isopod_isolation::cgroup::SandboxCgroup;
use isopod_isolation::launch::{CriuRequest, CriuTask, MAX_GUEST_FDS, RestoredRights, namespaces_of};
use isopod_isolation::sys::mount::{TreeOptions, clone_tree, set_tree_options};
use isopod_wire::checkpoint::{RestoredAs, RestoredEnd};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::criu::{Criu, restore_arguments};
use crate::failure::reason_in;
use crate::processes::inside_pid;
use crate::save::blocking;
use crate::saved::{FILES, IMAGES, STATE, Saved};
use crate::{Doing as _, MemoryError};

/// How long a restore may take.
const RESTORE_TIMEOUT: Duration = Duration::from_secs(120);
/// How long a killed process may take to end.
const ROOT_TIMEOUT: Timespec = Timespec { tv_sec: 5, tv_nsec: 0 };
/// How long CRIU's own processes may take to end.
const HELPERS_TIMEOUT: Duration = Duration::from_secs(2);
const HELPERS_PAUSE: Duration = Duration::from_millis(1);
/// CRIU's own directory.
const WORK_DIRECTORY: &str = "restore";

/// Where to restore, and what.
#[derive(Debug)]
pub struct Restore {
    pub backend: Arc<dyn Backend>,
    pub criu: Arc<Criu>,
    /// The first process, on the host.
    pub init: u32,
    pub pidfd: OwnedFd,
    pub cgroup: SandboxCgroup,
    /// The guest, which has its settings.
    pub guest: Checkpoint,
    /// A directory for root alone, in which CRIU gets one of its own.
    pub directory: PathBuf,
    /// The rights that its processes may have.
    pub rights: RestoredRights,
    /// The directory of the saved processes.
    pub memory: PathBuf,
    pub saved: Saved,
    pub restored: RestoredAs,
}

/// Restores the processes, stopped. After an error, the sandbox cannot be used.
pub async fn restore(restore: Restore) -> Result<Stopped, MemoryError> {
    let guest = restore.guest.clone();
    let files = tokio::fs::File::open(restore.memory.join(FILES)).await.doing("open the files in memory")?;
    guest.restore_files(files).await?;
    let state = tokio::fs::read(restore.memory.join(STATE)).await.doing("read the guest's state")?;
    let ends = check_ends(guest.restore(state.into()).await?.connections, &restore.saved)?;
    let restored = blocking(move || {
        run(&restore, &ends)?;
        wait_for_helpers(&restore)?;
        check_filters(&restore)?;
        // Frozen, because a process that is only stopped can have itself continued.
        restore.cgroup.freeze().map_err(io::Error::other).doing("look at the restored processes")?;
        let restored = check_rights(&restore)?;
        restore.cgroup.thaw().map_err(io::Error::other).doing("look at the restored processes")?;
        end_root(&restore, &restored)?;
        Ok::<_, MemoryError>((restored, restore))
    });
    let (restored, restore) = restored.await??;
    guest.finish_restore(restore.restored).await?;
    Ok(Stopped { restored, stay: restore.saved.stopped })
}

/// The guest is not trusted: it may hand over only what was saved, and not more than there is room for.
fn check_ends(ends: Vec<RestoredEnd>, saved: &Saved) -> Result<Vec<RestoredEnd>, MemoryError> {
    let is_known = |end: &RestoredEnd| saved.connections.binary_search(&end.connection).is_ok();
    if ends.len() > MAX_GUEST_FDS || !ends.iter().all(is_known) {
        return Err(MemoryError::Refused("its guest names connections that were not saved".to_owned()));
    }
    Ok(ends)
}

fn run(restore: &Restore, ends: &[RestoredEnd]) -> Result<(), MemoryError> {
    let namespaces = namespaces_of(restore.init).doing("open the sandbox's namespaces")?;
    let user = namespaces.iter().find(|(name, _)| *name == "user").map(|(_, file)| file);
    let images = images_for(&restore.memory.join(IMAGES), user)?;
    let numbers: Vec<i32> = ends.iter().map(|end| end.fd).collect();
    let entrances = restore.cgroup.entrances().map_err(io::Error::other).doing("open the sandbox's cgroups")?;
    let (work, place) = make_work_directory(restore)?;
    let succeeded = restore.backend.run_criu(&CriuRequest {
        task: CriuTask::Restore,
        program: restore.criu.program(),
        images: images.as_fd(),
        work: work.as_fd(),
        init: restore.pidfd.as_fd(),
        namespaces: &namespaces,
        cgroup_entrances: &entrances,
        guest_fds: &numbers,
        arguments: &restore_arguments(ends),
        timeout: RESTORE_TIMEOUT,
    });
    let reason = if let Ok(false) = succeeded { reason_in(&place.join("restore.log")) } else { String::new() };
    // Or the directory of the execution would be kept for another one with it.
    fs::remove_dir_all(&place).doing("remove CRIU's directory")?;
    if succeeded? { Ok(()) } else { Err(MemoryError::Criu(reason)) }
}

/// The images as the sandbox's root sees them: they belong to it, and it cannot change them.
fn images_for(images: &Path, user: Option<&File>) -> Result<OwnedFd, MemoryError> {
    let directory = File::open(images).doing("open the images")?;
    let tree = clone_tree(&directory, c"").doing("mount the images")?;
    let options = TreeOptions { read_only: true, no_set_uid: true, no_devices: true, id_map: user.map(AsFd::as_fd) };
    set_tree_options(&tree, options).doing("show the images to the sandbox")?;
    Ok(tree)
}

fn make_work_directory(restore: &Restore) -> Result<(OwnedFd, PathBuf), MemoryError> {
    let path = restore.directory.join(WORK_DIRECTORY);
    fs::DirBuilder::new().mode(0o700).create(&path).doing("make a directory for CRIU")?;
    let id = Some(restore.rights.first_id);
    chown(&path, id, id).doing("give a directory to CRIU")?;
    let directory = File::open(&path).doing("open CRIU's directory")?;
    // A mount of its own, so that no path of the sandbox leads through it to the host's directories above.
    Ok((clone_tree(&directory, c"").doing("mount CRIU's directory")?, path))
}

/// Waits until CRIU's own processes are gone. They end a moment after it has succeeded.
fn wait_for_helpers(restore: &Restore) -> Result<(), MemoryError> {
    let deadline = Instant::now() + HELPERS_TIMEOUT;
    let is_saved = |pid: u32| inside_pid(pid).is_none_or(|inside| restore.saved.pids.contains(&inside));
    while !restore.cgroup.pids().into_iter().all(|pid| pid == restore.init || is_saved(pid)) {
        if Instant::now() > deadline {
            return Err(MemoryError::Rights("it was not saved".to_owned()));
        }
        std::thread::sleep(HELPERS_PAUSE);
    }
    Ok(())
}

/// Not while they are frozen, because some freezers keep a process from its tracer too.
fn check_filters(restore: &Restore) -> Result<(), MemoryError> {
    let Some(filters) = &restore.saved.filters else { return Ok(()) };
    let pids = || restore.cgroup.pids().into_iter().filter(|pid| *pid != restore.init).collect();
    filters.check(pids).map_err(MemoryError::Rights)
}

/// A restored process.
#[derive(Debug)]
struct Restored {
    pidfd: OwnedFd,
    /// Its pid in the sandbox.
    inside: Option<u32>,
}

impl Restored {
    fn open(pid: u32) -> rustix::io::Result<Self> {
        let number = Pid::from_raw(pid.cast_signed()).ok_or(rustix::io::Errno::SRCH)?;
        Ok(Self { pidfd: pidfd_open(number, PidfdFlags::empty())?, inside: inside_pid(pid) })
    }

    fn is_among(&self, pids: &[u32]) -> bool {
        self.inside.is_some_and(|inside| pids.contains(&inside))
    }
}

/// Checks all processes but the guest.
fn check_rights(restore: &Restore) -> Result<Vec<Restored>, MemoryError> {
    let mut restored = Vec::new();
    for pid in restore.cgroup.pids().into_iter().filter(|pid| *pid != restore.init) {
        let process = Restored::open(pid).doing("open a restored process")?;
        restore.rights.check(pid).map_err(MemoryError::Rights)?;
        restored.push(process);
    }
    Ok(restored)
}

/// Kills the root, so that the guest becomes the parent of all others.
fn end_root(restore: &Restore, restored: &[Restored]) -> Result<(), MemoryError> {
    let root = restored.iter().find(|process| process.inside == Some(restore.saved.root));
    let root = root.ok_or(rustix::io::Errno::SRCH).doing("find the root of the restored processes")?;
    pidfd_send_signal(&root.pidfd, Signal::KILL).doing("end the root of the restored processes")?;
    poll(&mut [PollFd::new(&root.pidfd, PollFlags::IN)], Some(&ROOT_TIMEOUT)).doing("wait for the root's end")?;
    Ok(())
}

/// Restored processes that have not run since they were saved. Nothing of the sandbox has changed until they go on.
#[derive(Debug)]
#[must_use = "they do not run until they go on"]
pub struct Stopped {
    restored: Vec<Restored>,
    stay: Vec<u32>,
}

impl Stopped {
    /// The pids in the sandbox of those that had been stopped before they were saved, and so stay stopped.
    pub fn stay(&self) -> &[u32] {
        &self.stay
    }

    pub fn go_on(self) {
        for process in self.restored.iter().filter(|process| !process.is_among(&self.stay)) {
            // It may have been killed.
            let _ = pidfd_send_signal(&process.pidfd, Signal::CONT);
        }
    }
}

/// Lets the restored processes of a sandbox go on for a server that died before it could, all but those that `stay`.
pub fn go_on(cgroup: &SandboxCgroup, init: u32, stay: Vec<u32>) {
    let opened =
        cgroup.pids().into_iter().filter(|pid| *pid != init).filter_map(|pid| Some((pid, Restored::open(pid).ok()?)));
    let opened: Vec<(u32, Restored)> = opened.collect();
    // A pid may have become another process's since it was read.
    let pids = cgroup.pids();
    let restored = opened.into_iter().filter(|(pid, _)| pids.contains(pid)).map(|(_, process)| process).collect();
    Stopped { restored, stay }.go_on();
}
