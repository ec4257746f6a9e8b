//! `Move`: renames, or copies if source and destination are on different mounts.

use std::fs::Metadata;
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use isopod_wire::rpc::MessageField;
use isopod_wire::rpc::filesystem::{MoveRequest, MoveResponse};

use crate::fs::entry::entry_info;
use crate::fs::remove::remove_all;
use crate::fs::{blocking, failed, resolve};
use crate::paths::ensure_dirs;
use crate::rpc::{Call, RpcError};
use crate::users::Names;

pub(crate) async fn move_entry(call: Call, request: MoveRequest) -> Result<MoveResponse, RpcError> {
    let user = call.user()?;
    let source = resolve(&call, &user, &request.source)?;
    let destination = resolve(&call, &user, &request.destination)?;
    blocking(user, [source, destination], |[source, destination], user| {
        source.symlink_metadata().map_err(|error| failed("source file not found", &error))?;
        if let Some(parent) = destination.parent() {
            ensure_dirs(parent, user.uid, user.gid).map_err(|error| failed("error creating directory", &error))?;
        }
        match std::fs::rename(source, destination) {
            Err(error) if error.kind() == io::ErrorKind::CrossesDevices => move_across(source, destination),
            renamed => renamed,
        }
        .map_err(|error| failed("error renaming", &error))?;
        let entry = entry_info(destination, &Names::read()).map_err(|error| failed("file not found", &error))?;
        Ok(MoveResponse { entry: MessageField::some(entry) })
    })
    .await
}

/// Copies to a temporary name next to the destination first, so that the destination appears complete or not at all.
fn move_across(source: &Path, destination: &Path) -> io::Result<()> {
    let mut staging = destination.as_os_str().to_owned();
    staging.push(format!(".isopod-move-{:x}", rustix::process::getpid().as_raw_nonzero()));
    let staging = PathBuf::from(staging);
    let moved = copy_all(source, &staging).and_then(|()| std::fs::rename(&staging, destination));
    match moved {
        Ok(()) => remove_all(source),
        Err(error) => {
            let _ = remove_all(&staging);
            Err(error)
        }
    }
}

/// Copies a tree with its owners and modes. No recursion, because trees may be deep.
fn copy_all(source: &Path, destination: &Path) -> io::Result<()> {
    let mut todo = vec![(source.to_owned(), destination.to_owned())];
    let mut dirs = Vec::new();
    while let Some((from, to)) = todo.pop() {
        let meta = from.symlink_metadata()?;
        if meta.is_dir() {
            std::fs::create_dir(&to)?;
            for entry in std::fs::read_dir(&from)? {
                let entry = entry?;
                todo.push((entry.path(), to.join(entry.file_name())));
            }
            dirs.push((to, meta));
        } else {
            copy_one(&from, &to, &meta)?;
        }
    }
    // Set the modes of directories last: a read-only directory would stop the copy into it.
    dirs.iter().rev().try_for_each(|(dir, meta)| own_like(dir, meta))
}

fn copy_one(from: &Path, to: &Path, meta: &Metadata) -> io::Result<()> {
    if meta.is_symlink() {
        std::os::unix::fs::symlink(std::fs::read_link(from)?, to)?;
        return std::os::unix::fs::lchown(to, Some(meta.uid()), Some(meta.gid()));
    }
    if !meta.is_file() {
        let message = format!("{} is a special file and cannot be moved to another mount", from.display());
        return Err(io::Error::new(io::ErrorKind::Unsupported, message));
    }
    std::fs::copy(from, to)?;
    own_like(to, meta)
}

fn own_like(path: &Path, meta: &Metadata) -> io::Result<()> {
    // Set the owner first: changing it clears set-uid bits.
    std::os::unix::fs::chown(path, Some(meta.uid()), Some(meta.gid()))?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(meta.mode() & 0o7777))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_moves_whole_by_copying() {
        let dir = tempfile::tempdir().unwrap();
        let (source, destination) = (dir.path().join("s"), dir.path().join("d"));
        std::fs::create_dir_all(source.join("x/y")).unwrap();
        std::fs::write(source.join("x/file"), "text").unwrap();
        std::os::unix::fs::symlink("file", source.join("x/link")).unwrap();
        move_across(&source, &destination).unwrap();
        assert!(!source.exists());
        assert_eq!(std::fs::read_to_string(destination.join("x/link")).unwrap(), "text");
        assert!(destination.join("x/y").is_dir());
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}
