//! File operations run with the rights of the user that a request names.
//!
//! The daemon runs as the sandbox's root. If it used root's rights, a program of `user` could redirect it with a symbolic
//! link: to overwrite one of root's files, it would only have to wait for an upload. So the daemon works as the user.
//! If the user lacks a permission, the daemon retries as root, as E2B's daemon does, but only if every directory on the way
//! to the file can be changed by root alone. Then the client has chosen the file, and no program could have.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

use crate::sys::FileRights;
use crate::users::User;

/// An error that may be a missing permission.
pub(crate) trait Denied {
    fn is_denied(&self) -> bool;
}

/// Does the work with the user's rights. If a permission is missing, retries it with root's where that is safe: see the top
/// of this file. So `work` may run twice.
pub(crate) fn with_rights_of<T, E: Denied>(
    user: &User,
    paths: &[&Path],
    work: impl Fn() -> Result<T, E>,
) -> Result<T, E> {
    if user.uid == 0 {
        return work();
    }
    let as_user = {
        let _rights = FileRights::take(user.uid, user.gid, &user.groups());
        work()
    };
    match as_user {
        Err(error) if error.is_denied() && paths.iter().all(|path| only_root_can_redirect(path)) => work(),
        done => done,
    }
}

/// How many links a path may go through, as in the kernel.
const MAX_LINKS: usize = 40;

/// Whether only root can change where this path leads, links included. The last components may be missing: only root could
/// create them.
fn only_root_can_redirect(path: &Path) -> bool {
    let mut current = PathBuf::from("/");
    let mut todo: VecDeque<OsString> = names(path).collect();
    let mut links = 0;
    loop {
        let Some(control) = EntryControl::of(&current) else { return false };
        let Some(name) = todo.pop_front() else { return true };
        if name == ".." {
            current.pop();
            continue;
        }
        let next = current.join(name);
        match next.symlink_metadata() {
            Err(error) => return control == EntryControl::RootOnly && error.kind() == std::io::ErrorKind::NotFound,
            Ok(meta) if control == EntryControl::EntryOwner && meta.uid() != 0 => return false,
            Ok(meta) if meta.is_symlink() => {
                links += 1;
                let Ok(target) = std::fs::read_link(&next) else { return false };
                if links > MAX_LINKS {
                    return false;
                }
                if target.is_absolute() {
                    current = PathBuf::from("/");
                }
                for name in names(&target).collect::<Vec<_>>().into_iter().rev() {
                    todo.push_front(name);
                }
            }
            // The file itself may belong to anyone.
            Ok(_) if todo.is_empty() => return true,
            Ok(_) => current = next,
        }
    }
}

/// Who can replace the entries of a directory.
#[derive(Clone, Copy, PartialEq, Eq)]
enum EntryControl {
    /// Only root.
    RootOnly,
    /// Anyone can add entries, but only an entry's owner can replace it, as in `/tmp`.
    EntryOwner,
}

impl EntryControl {
    /// `None` if a user other than root can replace root's entries.
    fn of(directory: &Path) -> Option<Self> {
        let meta = directory.symlink_metadata().ok().filter(|meta| meta.is_dir() && meta.uid() == 0)?;
        match (meta.mode() & 0o022 != 0, meta.mode() & 0o1000 != 0) {
            (false, _) => Some(Self::RootOnly),
            (true, true) => Some(Self::EntryOwner),
            (true, false) => None,
        }
    }
}

fn names(path: &Path) -> impl Iterator<Item = OsString> {
    path.components().filter_map(|component| match component {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, chown, symlink};

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

    fn read(path: &Path) -> Result<String, Refused> {
        with_rights_of(&nobody(), &[path], || std::fs::read_to_string(path).map_err(|error| Refused(error.kind())))
    }

    /// A directory that only root can redirect; everyone can write to `/tmp`.
    fn roots_directory() -> tempfile::TempDir {
        let directory = tempfile::tempdir_in("/root").unwrap();
        std::fs::write(directory.path().join("secret"), "secret").unwrap();
        directory
    }

    #[test]
    fn a_path_that_the_client_chose_is_read_and_one_that_a_program_chose_is_not() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let roots = roots_directory();
        let secret = roots.path().join("secret");
        assert_eq!(read(&secret).unwrap(), "secret");
        symlink("secret", roots.path().join("roots-own-link")).unwrap();
        assert_eq!(read(&roots.path().join("roots-own-link")).unwrap(), "secret");

        let theirs = tempfile::tempdir().unwrap();
        chown(theirs.path(), Some(65534), Some(65534)).unwrap();
        symlink(&secret, theirs.path().join("link")).unwrap();
        symlink(roots.path(), theirs.path().join("directory")).unwrap();
        assert!(read(&theirs.path().join("link")).unwrap_err().is_denied());
        assert!(read(&theirs.path().join("directory/secret")).unwrap_err().is_denied());
        // Not even through a link of root's that leads through their directory.
        symlink(theirs.path().join("link"), roots.path().join("detour")).unwrap();
        assert!(read(&roots.path().join("detour")).unwrap_err().is_denied());
    }

    #[test]
    fn rights_come_back_after_the_work_and_after_a_panic() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let roots = roots_directory();
        let secret = roots.path().join("secret");
        std::fs::set_permissions(&secret, std::fs::Permissions::from_mode(0o600)).unwrap();
        let panicked = std::panic::catch_unwind(|| {
            let _ = with_rights_of::<(), Refused>(&nobody(), &[], || panic!("on purpose"));
        });
        assert!(panicked.is_err());
        assert_eq!(std::fs::read_to_string(&secret).unwrap(), "secret");
    }

    #[test]
    fn link_loops_and_files_in_the_way_are_refused() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let roots = roots_directory();
        symlink("loop", roots.path().join("loop")).unwrap();
        assert!(!only_root_can_redirect(&roots.path().join("loop")));
        assert!(!only_root_can_redirect(&roots.path().join("secret/below")));
        assert!(only_root_can_redirect(&roots.path().join("missing/below")));
        assert!(only_root_can_redirect(Path::new("/")));
        assert!(!only_root_can_redirect(Path::new("/tmp/isopod-missing")));
        let (roots_file, theirs) = (tempfile::NamedTempFile::new().unwrap(), tempfile::NamedTempFile::new().unwrap());
        chown(theirs.path(), Some(65534), None).unwrap();
        assert!(only_root_can_redirect(roots_file.path()));
        assert!(!only_root_can_redirect(theirs.path()));
    }
}
