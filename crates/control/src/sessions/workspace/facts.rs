//! What tells without reading a file whether it has changed.

use std::time::{SystemTime, UNIX_EPOCH};

/// A SHA-256 of contents.
pub(crate) type FileHash = [u8; 32];

/// What the file system says about a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct FileFacts {
    pub(crate) size: u64,
    /// Nanoseconds since 1970.
    pub(crate) modified: i64,
    /// Of the inode, so that a time that was set back does not hide a change.
    pub(crate) changed: i64,
    pub(crate) inode: u64,
}

/// Which copy is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// The run's input directory.
    Input,
    /// The sandbox's home.
    Inside,
}

/// A file as it was last seen; without facts it is gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FileRecord {
    pub(crate) side: Side,
    pub(crate) path: String,
    pub(crate) facts: Option<FileFacts>,
    pub(crate) hash: Option<FileHash>,
}

/// The inputs among records.
pub(in crate::sessions) fn input_paths(records: Vec<FileRecord>) -> Vec<String> {
    records.into_iter().filter(|record| record.side == Side::Input).map(|record| record.path).collect()
}

/// The clock of file systems may stand still for so long; a second change in that time has the same facts.
const CLOCK_STEP: i64 = 100_000_000;

impl FileFacts {
    /// Whether it changed so shortly before now that the same facts could hide a later change.
    pub(super) fn is_fresh(&self) -> bool {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let now = i64::try_from(now.as_nanos()).unwrap_or(i64::MAX);
        now.saturating_sub(self.changed.max(self.modified)) < CLOCK_STEP
    }
}
