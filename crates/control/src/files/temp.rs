//! Removing temporary files: those below `temp` that are old enough, and the directories that are then empty.

use std::io;
use std::time::Duration;

use isopod_store::clock::Timestamp;
use rustix::fs::FileType;

use super::error::FileError;
use super::path::InnerPath;
use super::store::Files;
use super::tree::Tree;
use super::walk::Found;

const TEMP: &str = "temp";
/// Nobody writes one file for so long.
const UNFINISHED_FOR: Duration = Duration::from_secs(24 * 3600);

impl Files {
    /// Removes temporary files that were not written for so long. Says how many there were.
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
        // From the end, so that what is in a directory goes before it.
        for found in found.iter().rev() {
            removed += u64::from(clean_one(&tree, found, before)?);
        }
        Ok(removed)
    }
}

/// Removes files that were begun long ago and never finished: their writer died.
fn clean_unfinished(tree: &Tree) -> Result<(), FileError> {
    let before = Timestamp::now().minus(UNFINISHED_FOR);
    let found = tree.list(&InnerPath::root(), usize::MAX).map_err(FileError::doing("list", ""))?;
    for found in found.iter().filter(|found| found.is_unfinished()) {
        clean_one(tree, found, before)?;
    }
    Ok(())
}

/// Says whether it was a file and went.
fn clean_one(tree: &Tree, found: &Found, before: Timestamp) -> Result<bool, FileError> {
    let path = &found.path;
    if found.kind() == FileType::Directory {
        // Goes if it is empty by now, whatever its age.
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
