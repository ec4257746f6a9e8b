//! File operations act for the user that a request names, and are never refused because of who owns a file.
//!
//! The daemon runs as the sandbox's root. A thread that works for a user takes the user's file ids, so that what it creates
//! belongs to the user from the start, and keeps root's capabilities, so that nothing is denied. Root's ids alone would not
//! do: in a directory like `/tmp`, many hosts (`fs.protected_symlinks`, `fs.protected_regular`) refuse to everyone but the
//! owner of a link to follow it, and to everyone but the owner of a file to open it for creation. Capabilities do not lift
//! these rules.
//!
//! A program in the sandbox can thus lead a call to a file of root with a link, as in E2B. Nothing is gained by that where
//! `sudo` asks for no password, and no link leads out of the sandbox's root.

use crate::sys::FileIds;
use crate::users::User;

/// An error that may be a missing permission.
pub(crate) trait Denied {
    fn is_denied(&self) -> bool;
}

/// Does the work for the user, with root's capabilities. If it is denied nevertheless, repeats it as root, because some
/// rules look at ids alone: the kernel shows most of `/proc/PID` of root's processes only to root. So `work` may run twice.
pub(crate) fn on_behalf_of<T, E: Denied>(user: &User, work: impl Fn() -> Result<T, E>) -> Result<T, E> {
    if user.uid == 0 {
        return work();
    }
    match with_ids_of(user, &work) {
        Err(error) if error.is_denied() => work(),
        done => done,
    }
}

/// Does the work for the user, with root's capabilities, once.
pub(crate) fn with_ids_of<T>(user: &User, work: impl FnOnce() -> T) -> T {
    let _ids = (user.uid != 0).then(|| FileIds::take(user.uid, user.gid));
    work()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
    use std::path::Path;
    use std::process::{Command, Stdio};

    use super::*;

    #[derive(Debug)]
    struct Refused(std::io::ErrorKind);

    impl Denied for Refused {
        fn is_denied(&self) -> bool {
            self.0 == std::io::ErrorKind::PermissionDenied
        }
    }

    fn nobody() -> User {
        User { name: "nobody".into(), uid: 65534, gid: 65534, home: "/".into(), shell: "/bin/sh".into() }
    }

    fn attempt<T>(work: impl Fn() -> std::io::Result<T>) -> Result<T, Refused> {
        on_behalf_of(&nobody(), || work().map_err(|error| Refused(error.kind())))
    }

    /// A directory that only root can enter, with a file that only root can read.
    fn roots_directory() -> tempfile::TempDir {
        let directory = tempfile::tempdir_in("/root").unwrap();
        let secret = directory.path().join("secret");
        std::fs::write(&secret, "secret").unwrap();
        std::fs::set_permissions(&secret, std::fs::Permissions::from_mode(0o600)).unwrap();
        directory
    }

    fn owner(path: &Path) -> u32 {
        path.symlink_metadata().unwrap().uid()
    }

    #[test]
    fn files_of_root_are_read_and_written_and_what_is_made_belongs_to_the_user() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let roots = roots_directory();
        let (secret, new) = (roots.path().join("secret"), roots.path().join("new"));
        assert_eq!(attempt(|| std::fs::read_to_string(&secret)).unwrap(), "secret");
        attempt(|| std::fs::write(&secret, "changed")).unwrap();
        attempt(|| std::fs::write(&new, "")).unwrap();
        attempt(|| std::fs::create_dir(roots.path().join("directory"))).unwrap();
        assert_eq!((owner(&secret), owner(&new), owner(&roots.path().join("directory"))), (0, 65534, 65534));
    }

    #[test]
    fn a_link_of_the_user_may_lead_to_a_file_of_root() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let (roots, theirs) = (roots_directory(), tempfile::tempdir().unwrap());
        let link = theirs.path().join("link");
        symlink(roots.path().join("secret"), &link).unwrap();
        std::os::unix::fs::lchown(&link, Some(65534), Some(65534)).unwrap();
        assert_eq!(attempt(|| std::fs::read_to_string(&link)).unwrap(), "secret");
    }

    #[test]
    fn what_the_kernel_shows_only_to_root_is_read() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let mut child = Command::new("/bin/cat").stdin(Stdio::piped()).env("OF_ROOT", "yes").spawn().unwrap();
        let environment = attempt(|| std::fs::read(format!("/proc/{}/environ", child.id())));
        drop(child.stdin.take());
        child.wait().unwrap();
        assert!(environment.is_ok(), "{environment:?}");
    }

    #[test]
    fn ids_and_rights_come_back_after_the_work_and_after_a_panic() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let roots = roots_directory();
        let panicked = std::panic::catch_unwind(|| {
            let _ = on_behalf_of::<(), Refused>(&nobody(), || panic!("on purpose"));
        });
        assert!(panicked.is_err());
        let new = roots.path().join("new");
        std::fs::write(&new, "").unwrap();
        assert_eq!(owner(&new), 0);
        assert_eq!(std::fs::read_to_string(roots.path().join("secret")).unwrap(), "secret");
    }
}
