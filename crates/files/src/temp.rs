//! Removes temporary files: old files below `temp`, and directories that are empty afterwards.

use std::io;
use std::time::Duration;

use isopod_store::clock::Timestamp;
use rustix::fs::FileType;

use crate::error::FileError;
use crate::path::InnerPath;
use crate::store::Files;
use crate::tree::Tree;
use crate::walk::Found;

const TEMP: &str = "temp";
/// No client takes this long to write one file.
const UNFINISHED_FOR: Duration = Duration::from_secs(24 * 3600);

impl Files {
    /// Removes temporary files that were not written for this long. Returns how many it removed.
    pub fn clean_temp(&self, older_than: Duration) -> Result<u64, FileError> {
        let tree = self.tree()?;
        clean_unfinished(&tree)?;
        let temp = InnerPath::root().join(TEMP);
        let before = Timestamp::now().minus(older_than);
        let found = match tree.list(&temp, usize::MAX).map_err(FileError::doing("list", TEMP)) {
            Ok(found) => found,
            Err(FileError::NotFound(_)) => return Ok(0),
            Err(error) => return Err(error),
        };
        let mut removed = 0;
        // In reverse order, so that the entries of a directory are removed before it.
        for found in found.iter().rev() {
            removed += u64::from(clean_one(&tree, found, before)?);
        }
        Ok(removed)
    }
}

/// Removes files that were started long ago and never finished, because their writer died.
fn clean_unfinished(tree: &Tree) -> Result<(), FileError> {
    let before = Timestamp::now().minus(UNFINISHED_FOR);
    let found = tree.list(&InnerPath::root(), usize::MAX).map_err(FileError::doing("list", ""))?;
    for found in found.iter().filter(|found| found.is_unfinished()) {
        clean_one(tree, found, before)?;
    }
    Ok(())
}

/// Returns whether it removed a file.
fn clean_one(tree: &Tree, found: &Found, before: Timestamp) -> Result<bool, FileError> {
    let path = &found.path;
    if found.kind() == FileType::Directory {
        // Removed if it is empty by now, whatever its age.
        let _ = tree.remove_dir(path);
        return Ok(false);
    }
    if found.modified_ms() > before.0 {
        return Ok(false);
    }
    match tree.remove_file(path) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(FileError::doing("remove", path.as_str())(error)),
    }
}
