//! `Remove`: removes a file or a whole tree. A missing path counts as removed.

use std::ffi::CString;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use isopod_wire::rpc::filesystem::{RemoveRequest, RemoveResponse};
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags};
use rustix::io::Errno;

use crate::fs::{blocking, failed, resolve};
use crate::paths::clean;
use crate::rpc::{Call, Code, RpcError};

pub(crate) async fn remove(call: Call, request: RemoveRequest) -> Result<RemoveResponse, RpcError> {
    let user = call.user()?;
    let path = resolve(&call, &user, &request.path)?;
    if clean(&path) == Path::new("/") {
        return Err(RpcError::new(Code::InvalidArgument, "the root directory cannot be removed"));
    }
    blocking(user, [path], |[path], _| {
        remove_all(path).map_err(|error| failed("error removing file or directory", &error))?;
        Ok(RemoveResponse {})
    })
    .await
}

/// Removes a tree of any depth without following links. It keeps a stack of open directories in place of recursion, and opens
/// each one relative to its parent, so that no program can swap in a link on the way.
pub(crate) fn remove_all(path: &Path) -> io::Result<()> {
    match rustix::fs::unlink(path) {
        Ok(()) | Err(Errno::NOENT | Errno::NOTDIR) => return Ok(()),
        Err(Errno::ISDIR | Errno::PERM) => {}
        Err(error) => return Err(error.into()),
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let root = match rustix::fs::open(path, flags, Mode::empty()) {
        Ok(root) => root,
        Err(Errno::NOENT) => return Ok(()),
        Err(error) => return Err(error.into()),
    };
    let mut stack = vec![Level::read(root)?];
    while let Some(level) = stack.last_mut() {
        let Some((name, is_dir)) = level.names.pop() else {
            stack.pop();
            if let Some(above) = stack.last_mut() {
                let emptied = above.entered.take().expect("a level above was entered by name");
                ignore_missing(rustix::fs::unlinkat(&above.fd, &emptied, AtFlags::REMOVEDIR))?;
            }
            continue;
        };
        if !is_dir {
            ignore_missing(rustix::fs::unlinkat(&level.fd, &name, AtFlags::empty()))?;
            continue;
        }
        match rustix::fs::openat(&level.fd, &name, flags, Mode::empty()) {
            Ok(fd) => {
                level.entered = Some(name);
                stack.push(Level::read(fd)?);
            }
            Err(Errno::NOENT) => {}
            // A program replaced the directory with a link or a file.
            Err(Errno::NOTDIR | Errno::LOOP) => {
                ignore_missing(rustix::fs::unlinkat(&level.fd, &name, AtFlags::empty()))?
            }
            Err(error) => return Err(error.into()),
        }
    }
    ignore_missing(rustix::fs::rmdir(path))
}

struct Level {
    fd: OwnedFd,
    names: Vec<(CString, bool)>,
    /// The child directory whose level is above this one on the stack.
    entered: Option<CString>,
}

impl Level {
    fn read(fd: OwnedFd) -> io::Result<Self> {
        let mut names = Vec::new();
        for entry in Dir::read_from(&fd)? {
            let entry = entry?;
            if ![c".", c".."].contains(&entry.file_name()) {
                let is_dir = match entry.file_type() {
                    FileType::Unknown => is_dir_at(&fd, entry.file_name()),
                    known => known == FileType::Directory,
                };
                names.push((entry.file_name().to_owned(), is_dir));
            }
        }
        Ok(Self { fd, names, entered: None })
    }
}

fn is_dir_at(fd: &OwnedFd, name: &std::ffi::CStr) -> bool {
    let stat = rustix::fs::statat(fd, name, AtFlags::SYMLINK_NOFOLLOW);
    stat.is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Directory)
}

fn ignore_missing(result: rustix::io::Result<()>) -> io::Result<()> {
    match result {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trees_links_and_missing_paths_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        let kept = dir.path().join("kept");
        std::fs::write(&kept, "x").unwrap();
        let tree = dir.path().join("tree");
        std::fs::create_dir_all(tree.join("a/b/c")).unwrap();
        std::fs::write(tree.join("a/file"), "").unwrap();
        std::os::unix::fs::symlink(dir.path(), tree.join("a/b/link")).unwrap();
        remove_all(&tree).unwrap();
        remove_all(&tree).unwrap();
        assert!(kept.exists() && !tree.exists());
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(&kept, &link).unwrap();
        remove_all(&link).unwrap();
        assert!(kept.exists() && link.symlink_metadata().is_err());
    }

    #[test]
    fn a_deep_tree_needs_no_deep_stack() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("deep");
        std::fs::create_dir(&root).unwrap();
        let mut fd = rustix::fs::open(&root, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).unwrap();
        for _ in 0..500 {
            rustix::fs::mkdirat(&fd, "d", Mode::RWXU).unwrap();
            fd = rustix::fs::openat(&fd, "d", OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).unwrap();
        }
        drop(fd);
        let small = std::thread::Builder::new().stack_size(128 << 10);
        small.spawn(move || remove_all(&root).unwrap()).unwrap().join().unwrap();
    }
}
