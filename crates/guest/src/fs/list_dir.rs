//! `ListDir`: the entries of a directory down to a depth, each directory before its contents.

use std::path::{Path, PathBuf};

use isopod_wire::rpc::filesystem::{EntryInfo, ListDirRequest, ListDirResponse};

use crate::fs::entry::entry_info;
use crate::fs::{blocking, failed, resolve};
use crate::rpc::{Call, Code, RpcError};
use crate::users::Names;

/// Longer listings are refused because they would use too much of the sandbox's memory.
const MAX_ENTRIES: usize = 1_000_000;

pub(crate) async fn list_dir(call: Call, request: ListDirRequest) -> Result<ListDirResponse, RpcError> {
    let user = call.user()?;
    let path = resolve(&call, &user, &request.path)?;
    let depth = request.depth.max(1);
    blocking(user, [path], move |[path], _| Ok(ListDirResponse { entries: list(path, depth)? })).await
}

fn list(root: &Path, depth: u32) -> Result<Vec<EntryInfo>, RpcError> {
    let meta = std::fs::metadata(root).map_err(|error| failed("path not found", &error))?;
    if !meta.is_dir() {
        return Err(RpcError::new(Code::InvalidArgument, format!("path is not a directory: {}", root.display())));
    }
    let names = Names::read();
    let mut entries = Vec::new();
    // Paths to visit with their depth, the next one last. No recursion, because trees may be deep.
    let mut stack =
        children(root, 1).map_err(|error| failed(&format!("error reading directory {}", root.display()), &error))?;
    while let Some((path, level)) = stack.pop() {
        // Skip entries that vanished since their directory was read.
        let Ok(entry) = entry_info(&path, &names) else { continue };
        let is_real_dir = !entry.is_symlink && path.is_dir();
        entries.push(entry);
        if entries.len() > MAX_ENTRIES {
            return Err(RpcError::new(
                Code::ResourceExhausted,
                format!("more than {MAX_ENTRIES} entries, use a smaller depth"),
            ));
        }
        if is_real_dir && level < depth {
            stack.extend(children(&path, level + 1).unwrap_or_default());
        }
    }
    Ok(entries)
}

/// The entries of a directory, sorted by name in reverse.
fn children(dir: &Path, level: u32) -> std::io::Result<Vec<(PathBuf, u32)>> {
    let mut paths: Vec<PathBuf> = std::fs::read_dir(dir)?.filter_map(|entry| Some(entry.ok()?.path())).collect();
    paths.sort_unstable_by(|a, b| b.cmp(a));
    Ok(paths.into_iter().map(|path| (path, level)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(root: &Path, depth: u32) -> Vec<String> {
        list(root, depth).unwrap().into_iter().map(|entry| entry.name).collect()
    }

    #[test]
    fn directories_come_before_what_is_in_them() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("b/c/d")).unwrap();
        std::fs::write(dir.path().join("a"), "").unwrap();
        std::fs::write(dir.path().join("z"), "").unwrap();
        assert_eq!(names(dir.path(), 1), ["a", "b", "z"]);
        assert_eq!(names(dir.path(), 2), ["a", "b", "c", "z"]);
        assert_eq!(names(dir.path(), 9), ["a", "b", "c", "d", "z"]);
    }

    #[test]
    fn links_to_directories_are_not_followed_but_a_linked_root_is() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("real")).unwrap();
        std::os::unix::fs::symlink("..", dir.path().join("real/up")).unwrap();
        assert_eq!(names(dir.path(), 50), ["real", "up"]);
        assert_eq!(names(&dir.path().join("real/up"), 1), ["real"]);
    }

    #[test]
    fn files_and_missing_paths_are_refused() {
        let file = tempfile::NamedTempFile::new().unwrap();
        assert_eq!(list(file.path(), 1).unwrap_err().code, Code::InvalidArgument);
        assert_eq!(list(Path::new("/no/such"), 1).unwrap_err().code, Code::NotFound);
    }
}
