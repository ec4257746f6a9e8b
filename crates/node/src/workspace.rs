//! The workspace inside sandboxes: who serves it, and the steps of mounting a part of it.
//!
//! The mount is made inside by the spawner, and only its connection comes out. Whoever serves it is another process, so that
//! it does not end with the server; here it is known by what it does.

use std::fmt;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};

use isopod_isolation::backend::Backend;
use isopod_isolation::launch::{LaunchError, WorkspaceConnection, WorkspaceRequest};
use isopod_wire::ExecutionId;
use isopod_wire::node::WorkspaceMount;
use rustix::fs::{Mode, OFlags, open, openat};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};

/// Places inside that belong to the sandbox itself.
const RESERVED: &[&str] = &["/proc", "/sys", "/dev"];
const LONGEST_PATH: usize = 1024;
const MOST_MOUNTS: usize = 16;

/// Serves the connections of mounts. Calls may block, and are made on threads where that is allowed.
pub trait WorkspaceServer: Send + Sync + fmt::Debug {
    /// Serves a part of the workspace through a connection that is mounted already. It is another's from now on.
    fn serve(&self, owner: &str, subtree: &str, connection: OwnedFd, number: u32) -> io::Result<()>;

    /// Whether something is served for this owner.
    fn serves(&self, owner: &str) -> bool;
}

/// Why a part of the workspace is not in a sandbox.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WorkspaceError {
    #[error("this node has no workspace")]
    None,
    #[error("mount {path:?}: {reason}")]
    Invalid { path: String, reason: &'static str },
    #[error("could not open {what}")]
    Open {
        what: &'static str,
        #[source]
        source: io::Error,
    },
    #[error(transparent)]
    Launch(#[from] LaunchError),
    #[error("could not have {subtree} served")]
    Serve {
        subtree: String,
        #[source]
        source: io::Error,
    },
}

/// Refuses what cannot be mounted, before anything is made.
pub(crate) fn check(mounts: &[WorkspaceMount]) -> Result<(), WorkspaceError> {
    let invalid = |mount: &WorkspaceMount, reason| WorkspaceError::Invalid { path: mount.path.clone(), reason };
    if let Some(surplus) = mounts.get(MOST_MOUNTS) {
        return Err(invalid(surplus, "a sandbox has at most 16"));
    }
    for (index, mount) in mounts.iter().enumerate() {
        let path = &mount.path;
        if !is_plain(path) {
            return Err(invalid(mount, "must be an absolute path without '.', '..' and empty parts"));
        }
        if RESERVED.iter().any(|reserved| is_within(path, reserved)) {
            return Err(invalid(mount, "lies in a directory of the sandbox's own"));
        }
        if mounts[..index].iter().any(|other| is_within(path, &other.path) || is_within(&other.path, path)) {
            return Err(invalid(mount, "lies within another one, or holds it"));
        }
        if !is_subtree(&mount.subtree) {
            return Err(invalid(mount, "its part of the workspace is not executions/<id> or volumes/<id>"));
        }
    }
    Ok(())
}

fn is_plain(path: &str) -> bool {
    let Some(rest) = path.strip_prefix('/') else { return false };
    path.len() <= LONGEST_PATH
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

/// Mounts everything that a sandbox shall see. On an error the caller removes the sandbox, and with it all of this.
pub(crate) fn mount_all(
    backend: &dyn Backend,
    server: Option<&dyn WorkspaceServer>,
    execution: &ExecutionId,
    init: u32,
    mounts: &[WorkspaceMount],
    replace: bool,
) -> Result<(), WorkspaceError> {
    if mounts.is_empty() {
        return Ok(());
    }
    let server = server.ok_or(WorkspaceError::None)?;
    let namespace = |name: &str| File::open(format!("/proc/{init}/ns/{name}"));
    let failed = |what| move |source| WorkspaceError::Open { what, source };
    let user = namespace("user").map_err(failed("the sandbox's user namespace"))?;
    let mount_namespace = namespace("mnt").map_err(failed("the sandbox's mount namespace"))?;
    let device = open("/dev/fuse", OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
        .map_err(|error| failed("/dev/fuse")(error.into()))?;
    for mount in mounts {
        let request = WorkspaceRequest {
            user_namespace: user.as_fd(),
            mount_namespace: mount_namespace.as_fd(),
            device: device.as_fd(),
            path: &mount.path,
            read_only: mount.read_only,
            replace,
        };
        let WorkspaceConnection { fd, number } = backend.mount_workspace(&request)?;
        server
            .serve(execution.as_str(), &mount.subtree, fd, number)
            .map_err(|source| WorkspaceError::Serve { subtree: mount.subtree.clone(), source })?;
    }
    Ok(())
}

/// The connections of a sandbox's mounts, to be aborted.
///
/// Opened while it lives, because its list of mounts goes with it; each file stays with its connection, also when the
/// number becomes another's.
#[derive(Debug, Default)]
pub(crate) struct Aborters(Vec<File>);

impl Aborters {
    pub(crate) fn of(init: u32) -> Self {
        let numbers = connection_numbers(init);
        if numbers.is_empty() {
            return Self::default();
        }
        let opened =
            connections().map(|list| numbers.iter().filter_map(|number| open_aborter(&list, *number)).collect());
        opened.map(Self).unwrap_or_else(|error| {
            tracing::warn!(%error, "connections to the workspace cannot be aborted");
            Self::default()
        })
    }

    /// Whoever waits for an answer gets an error now, whatever the one who should answer does.
    pub(crate) fn abort(self) {
        for mut file in self.0 {
            // It may be gone already.
            let _ = file.write_all(b"1");
        }
    }
}

fn connection_numbers(init: u32) -> Vec<u32> {
    let mounts = std::fs::read_to_string(format!("/proc/{init}/mountinfo")).unwrap_or_default();
    let ours = mounts.lines().filter(|line| line.contains(" - fuse.isopod "));
    ours.filter_map(|line| line.split(' ').nth(2)?.strip_prefix("0:")?.parse().ok()).collect()
}

/// The kernel's list of connections, mounted for us alone.
fn connections() -> rustix::io::Result<OwnedFd> {
    let context = fsopen("fusectl", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(&context)?;
    fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())
}

fn open_aborter(list: &OwnedFd, number: u32) -> Option<File> {
    let opened = openat(list, format!("{number}/abort"), OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty());
    opened.ok().map(File::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mount(path: &str, subtree: &str) -> WorkspaceMount {
        WorkspaceMount { path: path.to_owned(), subtree: subtree.to_owned(), read_only: false }
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
    fn mounts_do_not_hold_each_other() {
        let pair = |a, b| check(&[mount(a, "executions/e"), mount(b, "volumes/v")]).is_ok();
        assert!(!pair("/a", "/a") && !pair("/a", "/a/b") && !pair("/a/b", "/a"));
        assert!(pair("/a", "/ab"));
    }
}
