//! The workspace in sandboxes: who serves it, and how a subtree of it is mounted.
//!
//! The spawner mounts it in the sandbox and passes out only the connection. Another process serves it, so that it does
//! not end with the server. Here it is a trait.

use std::collections::BTreeSet;
use std::fmt;
use std::fs::File;
use std::io::{self, Write};
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use isopod_isolation::backend::Backend;
use isopod_isolation::cgroup::SandboxCgroup;
use isopod_isolation::launch::{LaunchError, WorkspaceConnection, WorkspaceRequest};
use isopod_wire::ExecutionId;
use isopod_wire::node::WorkspaceMount;
use rustix::fs::{AtFlags, Dir, Mode, OFlags, open, openat, statat};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};

use crate::boot::ProcessIdentity;

/// Directories that belong to the sandbox itself.
const RESERVED: &[&str] = &["/proc", "/sys", "/dev"];
const MAX_PATH: usize = 1024;
const MAX_MOUNTS: usize = 16;

/// Serves the connections of mounts. The methods may block.
pub trait WorkspaceServer: Send + Sync + fmt::Debug {
    /// Serves a subtree of the workspace through an already mounted connection, and takes ownership of the connection.
    fn serve(&self, mount: &MountedPart<'_>, connection: OwnedFd) -> Result<(), WorkspaceUnavailable>;

    /// The subtrees that are served now. Fails if that is unknown.
    fn served(&self) -> io::Result<Vec<ServedPart>>;
}

/// A mount in a sandbox that needs a server.
#[derive(Clone, Debug)]
pub struct MountedPart<'a> {
    /// The sandbox's execution.
    pub owner: &'a str,
    /// `executions/<id>` or `volumes/<id>`.
    pub subtree: &'a str,
    /// The kernel's number of the connection.
    pub number: u32,
    /// The sandbox had this mount before, so it must come back even if the store is unreachable.
    pub again: bool,
}

/// A mount that is being served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServedPart {
    /// The sandbox's execution.
    pub owner: String,
    /// `executions/<id>` or `volumes/<id>`.
    pub subtree: String,
}

/// Why the workspace is not available now. A later attempt may succeed.
#[derive(Debug, thiserror::Error)]
#[error("{reason}")]
pub struct WorkspaceUnavailable {
    /// A message for the client, without addresses and keys.
    pub reason: String,
    /// The full error, for the log.
    pub source: Box<dyn std::error::Error + Send + Sync>,
}

/// Why a mount is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mounting {
    /// The sandbox is new.
    First,
    /// The sandbox had it in an earlier execution.
    Resume,
    /// The running sandbox has lost it. The remains of the former mount are removed.
    Replace,
}

/// Why a subtree of the workspace is not mounted in a sandbox.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WorkspaceError {
    #[error("this node has no workspace")]
    None,
    #[error("mount {path:?}: {reason}")]
    Invalid { path: String, reason: &'static str },
    #[error("the sandbox has ended")]
    Ended,
    #[error("could not open {what}")]
    Open {
        what: &'static str,
        #[source]
        source: io::Error,
    },
    #[error(transparent)]
    Launch(#[from] LaunchError),
    #[error("{subtree} is not served")]
    Serve {
        subtree: String,
        #[source]
        source: WorkspaceUnavailable,
    },
}

/// Refuses invalid mounts before anything is created.
pub(crate) fn check(mounts: &[WorkspaceMount]) -> Result<(), WorkspaceError> {
    let invalid = |mount: &WorkspaceMount, reason| WorkspaceError::Invalid { path: mount.path.clone(), reason };
    if let Some(surplus) = mounts.get(MAX_MOUNTS) {
        return Err(invalid(surplus, "a sandbox has at most 16"));
    }
    for (index, mount) in mounts.iter().enumerate() {
        let path = &mount.path;
        if !is_plain(path) {
            return Err(invalid(mount, "must be an absolute path without '.', '..' and empty parts"));
        }
        if RESERVED.iter().any(|reserved| is_within(path, reserved)) {
            return Err(invalid(mount, "is in a directory that the sandbox needs itself"));
        }
        let is_usable = |file: &str| is_plain(file) && !RESERVED.iter().any(|reserved| is_within(file, reserved));
        if !mount.ready_file.as_deref().is_none_or(is_usable) {
            return Err(invalid(mount, "its ready file is in a directory that the sandbox needs itself"));
        }
        if mounts[..index].iter().any(|other| is_within(path, &other.path) || is_within(&other.path, path)) {
            return Err(invalid(mount, "is inside another mount, or contains one"));
        }
        if !is_subtree(&mount.subtree) {
            return Err(invalid(mount, "its subtree of the workspace is not executions/<id> or volumes/<id>"));
        }
    }
    Ok(())
}

fn is_plain(path: &str) -> bool {
    let Some(rest) = path.strip_prefix('/') else { return false };
    path.len() <= MAX_PATH
        && rest.split('/').all(|part| !matches!(part, "" | "." | "..") && part.len() < 256 && !part.contains('\0'))
}

fn is_within(path: &str, directory: &str) -> bool {
    path.strip_prefix(directory).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

fn is_subtree(subtree: &str) -> bool {
    let good = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    subtree.split_once('/').is_some_and(|(kind, id)| {
        matches!(kind, "executions" | "volumes")
            && (1..=128).contains(&id.len())
            && !id.starts_with('.')
            && id.bytes().all(good)
    })
}

/// Mounts subtrees of the workspace in a sandbox. On an error, the creator of a new sandbox removes it, and all mounts
/// with it.
pub(crate) fn mount_all(
    backend: &dyn Backend,
    server: Option<&dyn WorkspaceServer>,
    execution: &ExecutionId,
    init: &ProcessIdentity,
    mounts: &[WorkspaceMount],
    mounting: Mounting,
) -> Result<(), WorkspaceError> {
    if mounts.is_empty() {
        return Ok(());
    }
    let server = server.ok_or(WorkspaceError::None)?;
    let Namespaces { user, mount: mount_namespace } = Namespaces::open(init)?;
    let device = open("/dev/fuse", OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
        .map_err(|error| WorkspaceError::Open { what: "/dev/fuse", source: error.into() })?;
    for mount in mounts {
        let request = WorkspaceRequest {
            user_namespace: user.as_fd(),
            mount_namespace: mount_namespace.as_fd(),
            device: device.as_fd(),
            path: &mount.path,
            read_only: mount.read_only,
            ready_file: mount.ready_file.as_deref(),
            replace: mounting == Mounting::Replace,
        };
        let WorkspaceConnection { fd, number } = backend.mount_workspace(&request)?;
        let (subtree, again) = (mount.subtree.as_str(), mounting != Mounting::First);
        let part = MountedPart { owner: execution.as_str(), subtree, number, again };
        server.serve(&part, fd).map_err(|source| WorkspaceError::Serve { subtree: mount.subtree.clone(), source })?;
    }
    Ok(())
}

/// The namespaces to mount in.
struct Namespaces {
    user: File,
    mount: File,
}

impl Namespaces {
    /// Opens those of a sandbox, which may end at any moment, after which its pid may be reused.
    fn open(init: &ProcessIdentity) -> Result<Self, WorkspaceError> {
        let _pidfd = init.open().ok_or(WorkspaceError::Ended)?;
        let open = |name: &str, what| {
            File::open(format!("/proc/{}/ns/{name}", init.pid)).map_err(|source| WorkspaceError::Open { what, source })
        };
        let opened = Self { user: open("user", "its user namespace")?, mount: open("mnt", "its mount namespace")? };
        // It is still the same process, so it was when they were opened.
        init.open().ok_or(WorkspaceError::Ended)?;
        Ok(opened)
    }
}

/// The FUSE connections of a sandbox's mounts, to be aborted.
///
/// They are opened while something of the sandbox exists, because its list of mounts vanishes with it. Each file stays
/// tied to its connection, even if the number is reused.
#[derive(Debug, Default)]
pub(crate) struct Aborters(Vec<File>);

impl Aborters {
    pub(crate) fn of(init: u32, group: &SandboxCgroup) -> Self {
        let mut numbers = connection_numbers(Path::new(&format!("/proc/{init}")));
        if numbers.is_empty() {
            // The first process was killed and no longer has a list, but processes that wait for a reply still do.
            numbers = group.pids().into_iter().flat_map(|pid| numbers_of_member(group, pid)).collect();
        }
        Self::open(&numbers)
    }

    fn open(numbers: &BTreeSet<u32>) -> Self {
        if numbers.is_empty() {
            return Self::default();
        }
        let opened =
            connections().map(|list| numbers.iter().filter_map(|number| open_aborter(&list, *number)).collect());
        opened.map(Self).unwrap_or_else(|error| {
            tracing::warn!(%error, "cannot abort connections to the workspace");
            Self::default()
        })
    }

    /// Those of all FUSE file systems whose owner has one of these ids. Programs in the sandbox mounted them.
    pub(crate) fn owned_by(ids: Range<u32>) -> Self {
        let opened = connections().and_then(|list| {
            let numbers: Vec<u32> =
                entries(&list)?.into_iter().filter(|number| is_owned(&list, *number, &ids)).collect();
            Ok(numbers.into_iter().filter_map(|number| open_aborter(&list, number)).collect())
        });
        opened.map(Self).unwrap_or_else(|error| {
            tracing::warn!(%error, "cannot abort the FUSE connections of a sandbox");
            Self::default()
        })
    }

    /// Makes all waiting calls fail now, whatever the server does.
    pub(crate) fn abort(self) {
        for mut file in self.0 {
            // It may already be gone.
            let _ = file.write_all(b"1");
        }
    }
}

/// The connections of a running sandbox, recorded in advance. A thread that exits loses its list of mounts before its
/// last calls end, and then it can no longer be found out what it waits for.
#[derive(Debug, Default)]
pub(crate) struct KnownConnections {
    /// Ids of mounts, with the numbers of their connections.
    mounts: BTreeSet<(u32, u32)>,
    aborters: Aborters,
}

impl KnownConnections {
    /// Updates the connections, because mounts come and go.
    pub(crate) fn refresh(&mut self, init: u32) {
        let mounts = workspace_mounts(Path::new(&format!("/proc/{init}")));
        if !mounts.is_empty() && mounts != self.mounts {
            self.aborters = Aborters::open(&mounts.iter().map(|(_, number)| *number).collect());
            self.mounts = mounts;
        }
    }

    pub(crate) fn abort(self) {
        self.aborters.abort();
    }
}

/// The connections of all threads of a process. Each has a list until it exits.
fn numbers_of_member(group: &SandboxCgroup, pid: u32) -> BTreeSet<u32> {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let numbers = threads.flat_map(|thread| connection_numbers(&thread.path())).collect();
    // The pid may have been reused in the meantime.
    if group.pids().contains(&pid) { numbers } else { BTreeSet::new() }
}

fn connection_numbers(task: &Path) -> BTreeSet<u32> {
    workspace_mounts(task).into_iter().map(|(_, number)| number).collect()
}

/// Id and connection of each workspace mount that a task sees.
fn workspace_mounts(task: &Path) -> BTreeSet<(u32, u32)> {
    let mounts = std::fs::read_to_string(task.join("mountinfo")).unwrap_or_default();
    parse_workspace_mounts(&mounts)
}

fn parse_workspace_mounts(mounts: &str) -> BTreeSet<(u32, u32)> {
    let mount = |line: &str| {
        let mut fields = line.split(' ');
        let id = fields.next()?.parse().ok()?;
        Some((id, fields.nth(1)?.strip_prefix("0:")?.parse().ok()?))
    };
    mounts.lines().filter(|line| line.contains(" - fuse.isopod ")).filter_map(mount).collect()
}

/// The kernel's list of connections, in a private mount.
fn connections() -> rustix::io::Result<OwnedFd> {
    let context = fsopen("fusectl", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(&context)?;
    fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())
}

/// The numbers of all connections on this host.
fn entries(list: &OwnedFd) -> rustix::io::Result<Vec<u32>> {
    // The descriptor of a mount is only a path, which cannot be read.
    let readable = openat(list, ".", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let names = Dir::new(readable)?.collect::<rustix::io::Result<Vec<_>>>()?;
    Ok(names.iter().filter_map(|entry| entry.file_name().to_str().ok()?.parse().ok()).collect())
}

/// The directory of a connection belongs to the user who mounted the file system.
fn is_owned(list: &OwnedFd, number: u32, ids: &Range<u32>) -> bool {
    statat(list, number.to_string(), AtFlags::SYMLINK_NOFOLLOW).is_ok_and(|found| ids.contains(&found.st_uid))
}

fn open_aborter(list: &OwnedFd, number: u32) -> Option<File> {
    let opened = openat(list, format!("{number}/abort"), OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty());
    opened.ok().map(File::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mount(path: &str, subtree: &str) -> WorkspaceMount {
        WorkspaceMount { path: path.to_owned(), subtree: subtree.to_owned(), read_only: false, ready_file: None }
    }

    #[test]
    fn paths_and_parts_that_lead_elsewhere_are_refused() {
        for path in ["", "/", "x", "/a/../b", "/a//b", "/a/.", "/proc", "/proc/1", "/dev/shm", "/a\0b"] {
            assert!(check(&[mount(path, "executions/e")]).is_err(), "{path:?}");
        }
        for subtree in ["", "executions", "executions/", "executions/..", "executions/a/b", "other/x", "/executions/x"]
        {
            assert!(check(&[mount("/opt/x", subtree)]).is_err(), "{subtree:?}");
        }
        assert!(check(&[mount("/opt/x", "executions/e"), mount("/devices", "volumes/v")]).is_ok());
    }

    #[test]
    fn only_mounts_of_the_workspace_are_found_by_their_connections() {
        let list = "31 1 0:44 / / rw - overlay overlay rw\n\
                    32 31 0:57 / /opt/sentient/executions/e rw,nosuid - fuse.isopod isopod rw\n\
                    33 31 0:58 / /home/x\\040-\\040fuse.isopod rw - fuse.other other rw\n\
                    34 31 8:1 / /data rw - fuse.isopod isopod rw\n";
        assert_eq!(parse_workspace_mounts(list), BTreeSet::from([(32, 57)]));
        assert_eq!(parse_workspace_mounts("nonsense - fuse.isopod x"), BTreeSet::new());
    }

    #[test]
    fn mounts_do_not_hold_each_other() {
        let pair = |a, b| check(&[mount(a, "executions/e"), mount(b, "volumes/v")]).is_ok();
        assert!(!pair("/a", "/a") && !pair("/a", "/a/b") && !pair("/a/b", "/a"));
        assert!(pair("/a", "/ab"));
    }
}
