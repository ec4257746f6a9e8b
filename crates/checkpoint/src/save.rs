//! Saves the processes of a sandbox.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use isopod_guest_client::Connector;
use isopod_guest_client::checkpoint::{Checkpoint, CheckpointError};
use isopod_isolation::backend::Backend;
use isopod_isolation::cgroup::{SandboxCgroup, StoppedProcesses};
use isopod_isolation::launch::{CriuRequest, CriuTask, RestoredRights, SandboxFilters, namespaces_of};
use isopod_isolation::sys::mount::clone_tree;
use isopod_wire::checkpoint::{Connection, Held};
use rustix::fs::{Mode, OFlags, ResolveFlags, open, openat2, statvfs};
use rustix::process::{Signal, pidfd_send_signal};

use crate::clocks::SavedClocks;
use crate::criu::{Criu, dump_arguments};
use crate::failure::reason_in;
use crate::processes::{examine, inside_pid, wait_until_untraced};
use crate::saved::{FILES, IMAGES, STATE, Saved};
use crate::{Doing as _, MemoryError, images};

/// How long a dump may take. Gigabytes take seconds. A guest holds for somewhat longer.
const DUMP_TIMEOUT: Duration = Duration::from_secs(50);
/// A guest could name any number of connections.
const MAX_CONNECTIONS: usize = 10_000;
/// A disk with less space is full.
const LITTLE_SPACE: u64 = 1 << 20;
const NO_SPACE: &str = "there is no space on the state directory's disk";
const UUID_LENGTH: usize = 36;

/// The processes to save, and where to.
#[derive(Debug)]
pub struct Save {
    pub backend: Arc<dyn Backend>,
    pub criu: Arc<Criu>,
    /// The first process, on the host.
    pub init: u32,
    pub pidfd: Arc<OwnedFd>,
    pub cgroup: SandboxCgroup,
    /// Identifies this boot of the host.
    pub host_boot: String,
    /// The guest's socket, open.
    pub socket: OwnedFd,
    /// Whether all its processes are frozen.
    pub is_frozen: bool,
    /// A directory that does not exist yet. Its parent is for root alone.
    pub memory: PathBuf,
    /// The sandbox's memory limit, which neither its files in memory nor all of its processes can exceed by much.
    pub max_memory: u64,
    /// The rights that its processes may have.
    pub rights: RestoredRights,
    /// Told which processes are stopped by themselves, before others are.
    pub note_stopped: NoteStopped,
}

/// Takes the pids in the sandbox.
pub struct NoteStopped(pub Arc<dyn Fn(Vec<u32>) -> io::Result<()> + Send + Sync>);

impl fmt::Debug for NoteStopped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NoteStopped")
    }
}

/// Processes that are saved, and stand still.
#[derive(Debug)]
pub struct Saving {
    guest: Checkpoint,
    stopped: StoppedProcesses,
}

impl Saving {
    /// Lets them go on.
    pub async fn go_on(self) {
        release(&self.guest).await;
        drop(self.stopped);
    }

    /// Leaves them as they are, for a caller that ends them.
    pub fn keep_stopped(self) {
        self.stopped.keep_stopped();
    }
}

/// Saves the processes. They stand still then. After an error they go on, and nothing is left of what was saved.
pub async fn save(save: Save) -> Result<Saving, MemoryError> {
    let socket = save.socket.try_clone().doing("reach the guest")?;
    let guest = Checkpoint::over(Connector::open_unix(socket));
    let (held, stopped) = stand_still(&save, &guest).await?;
    let (memory, cgroup) = (save.memory.clone(), save.cgroup.clone());
    match write_all(save, held, &guest, &stopped).await {
        Ok(()) => Ok(Saving { guest, stopped }),
        Err(error) => {
            if let MemoryError::Launch(_) = error {
                // It may have taken too long, and must not leave processes behind as it found them.
                let _ = blocking(move || wait_until_untraced(&cgroup)).await;
            }
            Saving { guest, stopped }.go_on().await;
            remove(&memory);
            Err(error)
        }
    }
}

/// Has the guest hold, and stops all other processes.
async fn stand_still(save: &Save, guest: &Checkpoint) -> Result<(Held, StoppedProcesses), MemoryError> {
    if save.is_frozen {
        // The guest cannot answer before it is thawed, and the others shall not run.
        let stopped = stop(save).await?;
        match guest.hold().await {
            Ok(held) => return checked(guest, held, stopped).await,
            // A kernel has not read its last command yet, for which it has to run.
            Err(CheckpointError::Refused { .. }) => drop(stopped),
            Err(error) => return Err(error.into()),
        }
    }
    let held = guest.hold().await?;
    match stop(save).await {
        Ok(stopped) => checked(guest, held, stopped).await,
        Err(error) => {
            release(guest).await;
            Err(error)
        }
    }
}

async fn stop(save: &Save) -> Result<StoppedProcesses, MemoryError> {
    let (cgroup, init, note) = (save.cgroup.clone(), save.init, Arc::clone(&save.note_stopped.0));
    let note = move |pids: &[u32]| note(pids.iter().filter_map(|pid| inside_pid(*pid)).collect());
    Ok(blocking(move || cgroup.stop_all_but(init, &note)).await??)
}

async fn checked(
    guest: &Checkpoint,
    held: Held,
    stopped: StoppedProcesses,
) -> Result<(Held, StoppedProcesses), MemoryError> {
    if held.connections.len() <= MAX_CONNECTIONS {
        return Ok((held, stopped));
    }
    release(guest).await;
    Err(MemoryError::Refused(format!("its guest has more than {MAX_CONNECTIONS} connections")))
}

async fn write_all(save: Save, held: Held, guest: &Checkpoint, stopped: &StoppedProcesses) -> Result<(), MemoryError> {
    let (pids, before): (Vec<u32>, Vec<u32>) = (stopped.pids().collect(), stopped.stopped_before().collect());
    let (memory, max_files, root) = (save.memory.clone(), save.max_memory, held.root);
    let saved = blocking(move || dump(&save, held, &pids, &before)).await??;
    let create = |name: &str| create(&memory.join(name));
    guest.save_state(&mut create(STATE).doing("write the guest's state")?).await?;
    guest.save_files(&mut create(FILES).doing("write the files in memory")?, max_files).await?;
    blocking(move || {
        images::enter_namespaces(&memory.join(IMAGES), root).doing("change an image")?;
        saved.write(&memory).doing("describe what was saved")
    })
    .await?
}

/// Runs CRIU.
fn dump(save: &Save, held: Held, pids: &[u32], before: &[u32]) -> Result<Saved, MemoryError> {
    let Held { root, connections } = held;
    let images = make_directories(&save.memory)?;
    let examined = examine(&save.rights, pids.iter().copied())?;
    if examined.bytes > save.max_memory.saturating_mul(3) / 2 {
        let (has, may) = (examined.bytes >> 20, save.max_memory >> 20);
        let reason = format!("its processes share memory: apart, they would take {has} MiB, and the sandbox has {may}");
        return Err(MemoryError::Refused(reason));
    }
    let arguments = dump_arguments(root, &connections, &examined.external_files, &examined.watchers);
    // It could start processes beside CRIU, which suspends the filters of those that it saves.
    pidfd_send_signal(&*save.pidfd, Signal::STOP).doing("stop the guest")?;
    let dumped = run(save, &images, &arguments)
        .and_then(|()| check_source(save))
        .and_then(|()| SandboxFilters::of(save.init).doing("read the sandbox's system call filter"));
    let goes_on = pidfd_send_signal(&*save.pidfd, Signal::CONT);
    // First, because a sandbox that was ended has no guest either, and this says why.
    let filters = dumped?;
    goes_on.doing("let the guest go on")?;
    images::adapt_files(&images, &examined.external_files).doing("change an image")?;
    let mut saved = Saved::new(root, unique(connections));
    saved.pids = examined.pids;
    saved.pids.push(root);
    saved.stopped = before.iter().filter_map(|pid| inside_pid(*pid)).collect();
    saved.boot_id = boot_id_of(save.init);
    saved.filters = Some(filters);
    saved.clocks = Some(SavedClocks::of(save.init, &save.host_boot).doing("read the sandbox's clocks")?);
    Ok(saved)
}

/// CRIU has run a part of itself in each process, without a filter. Ends the sandbox if one of them has more rights now.
fn check_source(save: &Save) -> Result<(), MemoryError> {
    save.cgroup.freeze().map_err(io::Error::other).doing("look at the saved processes")?;
    let pids = save.cgroup.pids().into_iter().filter(|pid| *pid != save.init);
    let checked = pids.into_iter().try_for_each(|pid| save.rights.check(pid));
    save.cgroup.thaw().map_err(io::Error::other).doing("look at the saved processes")?;
    checked.map_err(|reason| {
        let _ = save.cgroup.kill();
        MemoryError::Rights(reason)
    })
}

fn run(save: &Save, images: &Path, arguments: &[String]) -> Result<(), MemoryError> {
    let directory = File::open(images).doing("open the images")?;
    // A mount of its own, so that no path of the sandbox leads through it to the host's directories above.
    let directory = clone_tree(&directory, c"").doing("mount the images")?;
    let namespaces = namespaces_of(save.init).doing("open the sandbox's namespaces")?;
    let succeeded = save.backend.run_criu(&CriuRequest {
        task: CriuTask::Dump,
        program: save.criu.program(),
        images: directory.as_fd(),
        work: directory.as_fd(),
        init: save.pidfd.as_fd(),
        namespaces: &namespaces,
        cgroup_entrances: &[],
        guest_fds: &[],
        arguments,
        timeout: DUMP_TIMEOUT,
    })?;
    let log = images.join("dump.log");
    if !succeeded {
        // CRIU may have had no room to say so.
        let reason = if is_full(images) { NO_SPACE.to_owned() } else { reason_in(&log) };
        return Err(MemoryError::Criu(reason));
    }
    fs::remove_file(log).doing("remove CRIU's log")?;
    keep_private(images).doing("change the modes of the images")
}

/// Whether the disk that the images are on is full.
fn is_full(images: &Path) -> bool {
    statvfs(images).is_ok_and(|disk| disk.f_bavail.saturating_mul(disk.f_frsize) < LITTLE_SPACE)
}

/// CRIU creates its images readable for everybody. Their directory is closed, but what is copied out of it should be as well.
fn keep_private(images: &Path) -> io::Result<()> {
    for image in fs::read_dir(images)? {
        fs::set_permissions(image?.path(), fs::Permissions::from_mode(0o600))?;
    }
    Ok(())
}

fn make_directories(memory: &Path) -> Result<PathBuf, MemoryError> {
    let images = memory.join(IMAGES);
    for directory in [memory, &images] {
        fs::DirBuilder::new().mode(0o700).create(directory).doing("make a directory for the memory")?;
    }
    Ok(images)
}

fn unique(mut connections: Vec<Connection>) -> Vec<Connection> {
    connections.sort_unstable();
    connections.dedup();
    connections
}

/// The sandbox chose the file's content, and could have put anything in its place, so links are not followed.
fn boot_id_of(init: u32) -> Option<String> {
    let directory = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = open(format!("/proc/{init}/root"), directory, Mode::empty()).ok()?;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let file = openat2(&root, "proc/sys/kernel/random/boot_id", flags, Mode::empty(), resolve).ok()?;
    let mut text = [0; UUID_LENGTH];
    File::from(file).read_exact(&mut text).ok()?;
    let text = String::from_utf8(text.to_vec()).ok()?;
    text.chars().all(|c| c.is_ascii_hexdigit() || c == '-').then_some(text)
}

fn create(path: &Path) -> io::Result<tokio::fs::File> {
    use std::os::unix::fs::OpenOptionsExt as _;
    File::options().write(true).create_new(true).mode(0o600).open(path).map(tokio::fs::File::from_std)
}

async fn release(guest: &Checkpoint) {
    // A hold ends by itself too.
    if let Err(error) = guest.release().await {
        tracing::warn!(error = &error as &dyn std::error::Error, "could not let a guest go on");
    }
}

fn remove(memory: &Path) {
    match fs::remove_dir_all(memory) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            tracing::warn!(path = %memory.display(), %error, "could not remove an unfinished dump");
        }
        _ => {}
    }
}

pub(crate) async fn blocking<T: Send + 'static>(task: impl FnOnce() -> T + Send + 'static) -> Result<T, MemoryError> {
    tokio::task::spawn_blocking(task).await.map_err(io::Error::other).doing("finish a step")
}
