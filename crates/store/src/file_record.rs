//! What is known of a file of a session: enough to tell without reading it whether it has changed.

/// A SHA-256 of contents.
pub type FileHash = [u8; 32];

/// What the file system says about a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FileFacts {
    pub size: u64,
    /// Nanoseconds since 1970.
    pub modified: i64,
    /// Of the inode, so that a time that was set back does not hide a change.
    pub changed: i64,
    pub inode: u64,
}

/// Which copy is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The run's input directory.
    Input,
    /// The sandbox's home.
    Inside,
}

/// A file as it was last seen; without facts it is gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileRecord {
    pub side: Side,
    pub path: String,
    pub facts: Option<FileFacts>,
    pub hash: Option<FileHash>,
}
