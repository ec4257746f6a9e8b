//! Mounts of one's own: for root a mount namespace, for everybody else a user namespace besides, in which they may mount.

use std::fs;
use std::io;

use anyhow::Context;
use isopod_isolation::empty_bounding_set;
use isopod_isolation::sys::ns::{Namespaces, unshare};
use rustix::mount::{MountPropagationFlags, mount_change};
use rustix::process::{getegid, geteuid};

use crate::failure::Hint;

/// From here on, what this process mounts is seen by itself and its children only. What others mount is still seen here.
pub(super) fn leave_shared_mounts() -> anyhow::Result<()> {
    if let Err(error) = unshare(Namespaces::MOUNT) {
        if error.kind() != io::ErrorKind::PermissionDenied {
            return Err(error).context("could not make a mount namespace");
        }
        enter_user_namespace().map_err(refused)?;
    }
    let slave = MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC;
    mount_change("/", slave).context("could not make mounts private")
}

/// With the same ids as before, so that files belong to whom they belong. No program that is started in it can have any of
/// its rights: what it may do is what its user may.
fn enter_user_namespace() -> io::Result<()> {
    let (user, group) = (geteuid().as_raw(), getegid().as_raw());
    unshare(Namespaces::USER.and(Namespaces::MOUNT))?;
    // Without it, groups cannot be mapped by those who have no rights outside.
    fs::write("/proc/self/setgroups", "deny")?;
    fs::write("/proc/self/uid_map", format!("{user} {user} 1\n"))?;
    fs::write("/proc/self/gid_map", format!("{group} {group} 1\n"))?;
    empty_bounding_set()
}

fn refused(error: io::Error) -> anyhow::Error {
    Hint::because(
        "this system does not let you make a view of files of your own",
        error,
        "run it with sudo; or allow user namespaces (sysctl user.max_user_namespaces, \
         kernel.apparmor_restrict_unprivileged_userns)",
    )
}
