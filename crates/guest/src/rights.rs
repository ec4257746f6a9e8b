//! With whose rights files are touched: those of the user that a request names.
//!
//! The daemon is the sandbox's root. If it simply acted as such, a program of `user` could lead it anywhere by a link: to
//! overwrite a file of root's it would only have to wait for somebody to upload something. So work is done as the user.
//! What the user may not do is done as root all the same, as E2B's daemon does it, but only where the whole way to the
//! file leads through directories that nobody but root can change. There the client, and no program, has chosen the file.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

use crate::sys::FileRights;
use crate::users::User;

/// An error that may mean that rights were missing.
pub(crate) trait Denied {
    fn is_denied(&self) -> bool;
}

/// Does the work with the user's rights, and once more with root's where that is harmless: see the top of this file. The
/// work must bear to be begun twice.
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
        Err(error) if error.is_denied() && paths.iter().all(|path| only_root_leads_to(path)) => work(),
        done => done,
    }
}

/// The most links that a path may lead through, as in the kernel.
const MOST_LINKS: usize = 40;

/// Whether every step of the way, through links too, is one that only root can change. What is missing at the end of the
/// way does not matter: only root could put something there.
fn only_root_leads_to(path: &Path) -> bool {
    let mut place = PathBuf::from("/");
    let mut todo: VecDeque<OsString> = names(path).collect();
    let mut links = 0;
    loop {
        let Some(keeper) = Keeper::of(&place) else { return false };
        let Some(name) = todo.pop_front() else { return true };
        if name == ".." {
            place.pop();
            continue;
        }
        let next = place.join(name);
        match next.symlink_metadata() {
            Err(error) => return keeper == Keeper::Root && error.kind() == std::io::ErrorKind::NotFound,
            Ok(meta) if keeper == Keeper::Owners && meta.uid() != 0 => return false,
            Ok(meta) if meta.is_symlink() => {
                links += 1;
                let Ok(target) = std::fs::read_link(&next) else { return false };
                if links > MOST_LINKS {
                    return false;
                }
                if target.is_absolute() {
                    place = PathBuf::from("/");
                }
                for name in names(&target).collect::<Vec<_>>().into_iter().rev() {
                    todo.push_front(name);
                }
            }
            // The thing itself may be anybody's.
            Ok(_) if todo.is_empty() => return true,
            Ok(_) => place = next,
        }
    }
}

/// Who can put something else in the place of what is in a directory.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Keeper {
    /// Only root.
    Root,
    /// Everybody can add, but only the owner of an entry can change it: `/tmp`.
    Owners,
}

impl Keeper {
    /// `None` where somebody else than root can change entries of root's.
    fn of(directory: &Path) -> Option<Self> {
        let meta = directory.symlink_metadata().ok().filter(|meta| meta.is_dir() && meta.uid() == 0)?;
        match (meta.mode() & 0o022 != 0, meta.mode() & 0o1000 != 0) {
            (false, _) => Some(Self::Root),
            (true, true) => Some(Self::Owners),
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

    /// A directory whose whole way is root's: /tmp is everybody's.
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
        // Not even by a link of root's that leads through their directory.
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
    fn endless_links_and_files_on_the_way_lead_nowhere() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let roots = roots_directory();
        symlink("loop", roots.path().join("loop")).unwrap();
        assert!(!only_root_leads_to(&roots.path().join("loop")));
        assert!(!only_root_leads_to(&roots.path().join("secret/below")));
        assert!(only_root_leads_to(&roots.path().join("missing/below")));
        assert!(only_root_leads_to(Path::new("/")));
        assert!(!only_root_leads_to(Path::new("/tmp/isopod-missing")));
        let (roots_file, theirs) = (tempfile::NamedTempFile::new().unwrap(), tempfile::NamedTempFile::new().unwrap());
        chown(theirs.path(), Some(65534), None).unwrap();
        assert!(only_root_leads_to(roots_file.path()));
        assert!(!only_root_leads_to(theirs.path()));
    }
}
