//! Looks at the processes of a sandbox from outside, before they are dumped.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use isopod_isolation::cgroup::SandboxCgroup;
use isopod_isolation::launch::RestoredRights;

use rustix::fs::{AtFlags, Mode, OFlags, StatxFlags, open, statx};

use crate::MemoryError;
use crate::failure::shown;

/// What a dump has to know about the processes.
#[derive(Debug, Default)]
pub(crate) struct Examined {
    /// The pids in the sandbox of all processes and threads.
    pub(crate) pids: Vec<u32>,
    /// Files that are mapped from mounts of another namespace, by CRIU's name for them. Interpreters have the libraries of
    /// their zygote's root, and the sandbox has the same files at the same paths.
    pub(crate) external_files: BTreeMap<String, String>,
    /// Working directories of processes that watch files, which are often below them.
    pub(crate) watchers: BTreeSet<String>,
    /// What the processes have in memory, each counted by itself.
    pub(crate) bytes: u64,
}

/// What the first process of a sandbox has.
struct First {
    /// The mounts of the sandbox.
    own: BTreeSet<u64>,
    /// Those that somebody serves, such as volumes.
    served: BTreeSet<u64>,
    /// A kernel can be without.
    has_vdso: bool,
}

/// Examines processes that are stopped. The error names a process and what it has that cannot be saved.
pub(crate) fn examine(rights: &RestoredRights, pids: impl Iterator<Item = u32>) -> Result<Examined, MemoryError> {
    let first = First::of(rights.init)
        .map_err(|source| MemoryError::File { what: "look at the sandbox's first process", source })?;
    let mut examined = Examined::default();
    for pid in pids {
        match examine_one(pid, rights, &first, &mut examined) {
            Err(Obstacle::Gone) => {}
            Err(Obstacle::Has(what)) => {
                let inside = inside_pid(pid).unwrap_or(0);
                return Err(MemoryError::Refused(shown(&format!("process {inside} ({}) {what}", name_of(pid)))));
            }
            Ok(()) => {}
        }
    }
    Ok(examined)
}

enum Obstacle {
    /// It has ended.
    Gone,
    Has(String),
}

impl From<io::Error> for Obstacle {
    fn from(_: io::Error) -> Self {
        Self::Gone
    }
}

fn examine_one(pid: u32, rights: &RestoredRights, first: &First, examined: &mut Examined) -> Result<(), Obstacle> {
    let place = PathBuf::from(format!("/proc/{pid}"));
    examined.bytes += memory_of(&place)?;
    // Namespaces of its own would be saved by CRIU with the host's rights.
    rights.check(pid).map_err(|reason| Obstacle::Has(format!("is not like others of the sandbox: {reason}")))?;
    for thread in fs::read_dir(place.join("task"))? {
        examined.pids.extend(inside_pid_of(&thread?.path()));
    }
    let program = fs::read_link(place.join("exe"))?;
    if program.to_string_lossy().starts_with("/memfd:") {
        return Err(Obstacle::Has("runs a program from memory, which cannot be restored".to_owned()));
    }
    examine_files(&place, first, examined)?;
    examine_mapped(&place, first, examined)
}

fn examine_files(place: &Path, first: &First, examined: &mut Examined) -> Result<(), Obstacle> {
    let mut entries = vec![place.join("cwd"), place.join("root")];
    for entry in fs::read_dir(place.join("fd"))? {
        entries.push(entry?.path());
    }
    for entry in entries {
        let Ok(target) = fs::read_link(&entry) else { continue };
        let target = target.to_string_lossy().into_owned();
        if target == "anon_inode:inotify"
            && let Ok(directory) = fs::read_link(place.join("cwd"))
        {
            examined.watchers.insert(directory.to_string_lossy().into_owned());
        }
        if let Some(what) = obstacle_of(&target) {
            return Err(Obstacle::Has(what));
        }
        if target.starts_with('/') && mount_of(&entry).is_some_and(|mount| first.served.contains(&mount)) {
            return Err(Obstacle::Has(format!("has {target} open, which is on a volume or the workspace")));
        }
    }
    Ok(())
}

/// Why a process cannot be saved that has this open, by the name that the kernel gives a descriptor.
fn obstacle_of(target: &str) -> Option<String> {
    if target.starts_with("anon_inode:[io_uring]") {
        return Some("uses io_uring, which cannot be saved".to_owned());
    }
    // Those of NVIDIA are files in /dev, the others are in a directory.
    if target.starts_with("/dev/nvidia") || target.starts_with("/dev/dri/") {
        return Some(format!("has {target} open, a device that cannot be saved"));
    }
    None
}

fn examine_mapped(place: &Path, first: &First, examined: &mut Examined) -> Result<(), Obstacle> {
    if first.has_vdso && !has_vdso(place)? {
        return Err(Obstacle::Has("has replaced its vDSO, without which it cannot be restored".to_owned()));
    }
    let mut entries = vec![place.join("exe")];
    for entry in fs::read_dir(place.join("map_files"))? {
        entries.push(entry?.path());
    }
    for entry in entries {
        let Ok(target) = fs::read_link(&entry) else { continue };
        let target = target.to_string_lossy().into_owned();
        let (Some(mount), true) = (mount_of(&entry), target.starts_with('/')) else { continue };
        if !first.own.contains(&mount) && target.starts_with("/SYSV") {
            return Err(Obstacle::Has("has System V shared memory, which cannot be saved".to_owned()));
        }
        if first.served.contains(&mount) {
            return Err(Obstacle::Has(format!("has {target} in its memory, which is on a volume or the workspace")));
        }
        // Memory files are mounted nowhere.
        if !first.own.contains(&mount)
            && !target.starts_with("/memfd:")
            && !target.starts_with("/dev/zero")
            && let Some(inode) = opened(&entry).and_then(|file| rustix::fs::fstat(&file).ok()).map(|found| found.st_ino)
        {
            examined.external_files.insert(format!("file[{mount:x}:{inode:x}]"), target);
        }
    }
    Ok(())
}

impl First {
    fn of(init: u32) -> io::Result<Self> {
        let place = PathBuf::from(format!("/proc/{init}"));
        let mut first = Self { own: BTreeSet::new(), served: BTreeSet::new(), has_vdso: has_vdso(&place)? };
        for line in fs::read_to_string(place.join("mountinfo"))?.lines() {
            let Some(id) = line.split(' ').next().and_then(|id| id.parse().ok()) else { continue };
            first.own.insert(id);
            let kind = line.split_once(" - ").and_then(|(_, rest)| rest.split(' ').next()).unwrap_or_default();
            if kind.starts_with("fuse") {
                first.served.insert(id);
            }
        }
        Ok(first)
    }
}

/// Whether a process has what the kernel gave it for calls that need no kernel. CRIU finds it by its name.
fn has_vdso(place: &Path) -> io::Result<bool> {
    Ok(fs::read_to_string(place.join("maps"))?.lines().any(|line| line.ends_with("[vdso]")))
}

/// Without asking whoever serves it, which may not answer.
fn mount_of(link: &Path) -> Option<u64> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    // The kernel always gives the mount. Whoever asks for anything on a file system of another user gets an error instead.
    statx(opened(link)?, "", flags, StatxFlags::empty()).ok().map(|found| found.stx_mnt_id)
}

fn opened(link: &Path) -> Option<OwnedFd> {
    open(link, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).ok()
}

/// The pid that a process of the host has in its sandbox.
pub(crate) fn inside_pid(pid: u32) -> Option<u32> {
    inside_pid_of(Path::new(&format!("/proc/{pid}")))
}

fn inside_pid_of(place: &Path) -> Option<u32> {
    let status = fs::read_to_string(place.join("status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("NSpid:"))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

fn name_of(pid: u32) -> String {
    fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default().trim().to_owned()
}

/// In bytes, without what it only maps from files.
fn memory_of(place: &Path) -> io::Result<u64> {
    let status = fs::read_to_string(place.join("status"))?;
    let kib = |name: &str| {
        let value = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        value.and_then(|value| value.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0)
    };
    Ok((kib("RssAnon") + kib("RssShmem") + kib("VmSwap")) << 10)
}

/// How long CRIU may go on after its caller has stopped waiting for it.
const CRIU_TIMEOUT: Duration = Duration::from_secs(120);
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// CRIU traces one process after the other, so it has to be gone for longer than that takes.
const QUIET_POLLS: u32 = 3;

/// Waits until no process of a sandbox is traced, and so CRIU is gone.
pub fn wait_until_untraced(cgroup: &SandboxCgroup) {
    let deadline = Instant::now() + CRIU_TIMEOUT;
    let mut quiet = 0;
    while quiet < QUIET_POLLS && Instant::now() < deadline {
        quiet = if cgroup.pids().into_iter().any(is_traced) { 0 } else { quiet + 1 };
        std::thread::sleep(POLL_INTERVAL);
    }
}

fn is_traced(pid: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let tracer = status.lines().find_map(|line| line.strip_prefix("TracerPid:"));
    tracer.is_some_and(|tracer| tracer.trim() != "0")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rings_and_graphics_cards_that_are_open_cannot_be_saved() {
        for ring in ["anon_inode:[io_uring]", "anon_inode:[io_uring] (deleted)"] {
            assert_eq!(obstacle_of(ring).as_deref(), Some("uses io_uring, which cannot be saved"));
        }
        for device in ["/dev/nvidia0", "/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/dri/card0", "/dev/dri/renderD128"] {
            let expected = format!("has {device} open, a device that cannot be saved");
            assert_eq!(obstacle_of(device), Some(expected));
        }
    }

    #[test]
    fn other_things_that_are_open_are_no_obstacle() {
        let files = [
            "/home/user/file",
            "/home/user/dev/dri/card0",
            "/dev/null",
            "/dev/pts/0",
            "/dev/driver",
            "/dev/shm/nvidia0",
        ];
        let objects =
            ["socket:[1]", "pipe:[2]", "anon_inode:inotify", "anon_inode:[eventpoll]", "anon_inode:[eventfd]"];
        // Such as a memory file, which is restored; only a program that runs from one cannot be.
        let deleted = ["/memfd:ring (deleted)", "/memfd:io_uring (deleted)", "/tmp/file (deleted)"];
        for target in files.iter().chain(&objects).chain(&deleted) {
            assert_eq!(obstacle_of(target), None, "{target}");
        }
    }
}
