//! Resolves the paths of requests, and creates missing parent directories.
//!
//! Paths are resolved inside the sandbox's own file system. `..` and symbolic links need no check here because they cannot
//! lead out of it.

use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Component, Path, PathBuf};

use crate::users::User;

/// Why a path cannot be used.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(crate) enum PathError {
    #[error("failed to expand path '{path}' for user '{user}': cannot expand user-specific home dir")]
    ForeignHome { path: String, user: String },
    #[error("path contains a NUL byte")]
    Nul,
}

/// Makes a client's path absolute. `~` and relative paths start at the user's home; an empty path means the default working
/// directory.
pub(crate) fn resolve(path: &str, user: &User, default_workdir: Option<&str>) -> Result<PathBuf, PathError> {
    let path = if path.is_empty() { default_workdir.unwrap_or_default() } else { path };
    if path.contains('\0') {
        return Err(PathError::Nul);
    }
    if let Some(rest) = path.strip_prefix('~') {
        if !(rest.is_empty() || rest.starts_with(['/', '\\'])) {
            return Err(PathError::ForeignHome { path: path.to_owned(), user: user.name.clone() });
        }
        return Ok(clean(&Path::new(&user.home).join(rest.trim_start_matches('/'))));
    }
    if path.starts_with('/') {
        return Ok(PathBuf::from(path));
    }
    Ok(clean(&Path::new(&user.home).join(path)))
}

/// Removes `.` and `..` by text alone, without looking at the file system.
pub(crate) fn clean(path: &Path) -> PathBuf {
    let mut cleaned = PathBuf::from("/");
    for component in path.components() {
        match component {
            Component::ParentDir => {
                cleaned.pop();
            }
            Component::Normal(name) => cleaned.push(name),
            Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
        }
    }
    cleaned
}

/// The last component of a path, as replies show it.
pub(crate) fn base_name(path: &Path) -> String {
    path.file_name().map_or_else(|| "/".to_owned(), |name| name.to_string_lossy().into_owned())
}

/// Creates the missing directories up to `path`, owned by the user. Safe to run concurrently.
pub(crate) fn ensure_dirs(path: &Path, uid: u32, gid: u32) -> io::Result<()> {
    // No recursion: a path may have two thousand components, and blocking threads have small stacks.
    let mut missing = Vec::new();
    for ancestor in path.ancestors() {
        match std::fs::metadata(ancestor) {
            Ok(meta) if meta.is_dir() => break,
            Ok(_) => return Err(not_a_directory(ancestor)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => missing.push(ancestor),
            Err(error) => return Err(error),
        }
    }
    missing.into_iter().rev().try_for_each(|dir| ensure_dir(dir, uid, gid))
}

fn ensure_dir(path: &Path, uid: u32, gid: u32) -> io::Result<()> {
    match std::fs::DirBuilder::new().mode(0o755).create(path) {
        Ok(()) => std::os::unix::fs::lchown(path, Some(uid), Some(gid)),
        // Another request was faster, which is fine, or a dangling link is in the way.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => match std::fs::metadata(path) {
            Ok(meta) if meta.is_dir() => Ok(()),
            Ok(_) => Err(not_a_directory(path)),
            Err(_) => Err(error),
        },
        Err(error) => Err(error),
    }
}

fn not_a_directory(path: &Path) -> io::Error {
    io::Error::new(io::ErrorKind::NotADirectory, format!("path is a file: {}", path.display()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn user() -> User {
        User { name: "user".into(), uid: 1000, gid: 1000, home: "/home/user".into(), shell: "/bin/bash".into() }
    }

    fn resolved(path: &str) -> String {
        resolve(path, &user(), None).unwrap().to_str().unwrap().to_owned()
    }

    #[test]
    fn foreign_homes_and_nul_are_refused() {
        assert!(matches!(resolve("~root/x", &user(), None), Err(PathError::ForeignHome { .. })));
        assert_eq!(resolve("a\0b", &user(), None), Err(PathError::Nul));
    }

    #[test]
    fn relative_paths_start_at_home() {
        assert_eq!(resolved("a/../b"), "/home/user/b");
        assert_eq!(resolved("~"), "/home/user");
        assert_eq!(resolved("~/x"), "/home/user/x");
        assert_eq!(resolved(""), "/home/user");
        assert_eq!(resolved("../../../../etc"), "/etc");
        assert_eq!(resolved("/a/../b"), "/a/../b");
        assert_eq!(resolve("", &user(), Some("/app")).unwrap(), Path::new("/app"));
    }

    #[test]
    fn a_file_in_the_way_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("f");
        std::fs::write(&file, "").unwrap();
        let error = ensure_dirs(&file.join("x"), 0, 0).unwrap_err();
        assert!(error.to_string().contains("path is a file") || error.kind() == io::ErrorKind::NotADirectory);
        let dangling = dir.path().join("l");
        std::os::unix::fs::symlink("/no/such/target", &dangling).unwrap();
        assert!(ensure_dirs(&dangling, 0, 0).is_err());
    }

    proptest! {
        #[test]
        fn resolved_paths_are_absolute(path in ".{0,60}") {
            if let Ok(found) = resolve(&path, &user(), None) {
                prop_assert!(found.is_absolute());
            }
        }
    }
}
