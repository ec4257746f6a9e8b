//! Mounts of one's own: for root a mount namespace, for everybody else a user namespace besides, in which they may mount.

use std::fs;
use std::io;
use std::path::Path;

use anyhow::Context;
use isopod_isolation::empty_bounding_set;
use isopod_isolation::sys::ns::{Namespaces, unshare};
use rustix::mount::{MountPropagationFlags, UnmountFlags, mount_change, unmount};
use rustix::process::{getegid, geteuid};

use crate::failure::Hint;

/// From here on, what this process mounts is seen by itself and its children only. What others mount is still seen here.
pub(super) fn leave_shared_mounts() -> anyhow::Result<()> {
    let is_privileged = match unshare(Namespaces::MOUNT) {
        Ok(()) => true,
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            enter_user_namespace().map_err(refused)?;
            false
        }
        Err(error) => return Err(error).context("could not make a mount namespace"),
    };
    let slave = MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC;
    mount_change("/", slave).context("could not make mounts private")?;
    // In a user namespace the kernel lets nobody take apart what came from outside.
    if is_privileged {
        let mounts = fs::read_to_string("/proc/self/mountinfo").context("could not read the table of mounts")?;
        for disk in disks_of_servers(&mounts, |directory| directory.join(STATE_MARK).is_file()) {
            // One that is gone meanwhile needs no more.
            let _ = unmount(disk, UnmountFlags::DETACH);
        }
    }
    Ok(())
}

/// Every state directory has this file.
const STATE_MARK: &str = "tag";

/// Where servers have mounted their disks. A copy of such a mount would keep the disk in use for as long as the command
/// runs, and its server could not release it: not every host passes on that a mount is gone.
fn disks_of_servers<'a>(
    mounts: &'a str,
    is_state_directory: impl Fn(&Path) -> bool + 'a,
) -> impl Iterator<Item = &'a Path> {
    let points = mounts.lines().filter_map(|line| line.split(' ').nth(4).map(Path::new));
    points.filter(move |point| point.ends_with("disk") && point.parent().is_some_and(&is_state_directory))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn disks_are_found_by_the_state_directories_that_they_are_in() {
        let mounts = "22 1 254:0 / / rw - ext4 /dev/vda rw\n\
                      51 22 0:45 / /var/lib/isopod/disk rw - btrfs /dev/loop0 rw\n\
                      52 22 0:46 / /mnt/disk rw - btrfs /dev/sdb rw\n\
                      53 22 0:47 / /var/lib/isopod/storage rw - fuse isopod rw\n";
        let found: Vec<_> = disks_of_servers(mounts, |directory| directory == Path::new("/var/lib/isopod")).collect();
        assert_eq!(found, [Path::new("/var/lib/isopod/disk")]);
    }
}
