//! What the store knows about a file of a session. It is enough to notice a change without reading the file.

/// The SHA-256 of a file's contents.
pub type FileHash = [u8; 32];

/// The metadata of a file in the file system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FileFacts {
    pub size: u64,
    /// Nanoseconds since 1970.
    pub modified: i64,
    /// The change time of the inode, in nanoseconds. It reveals a change even if the modification time was set back.
    pub changed: i64,
    pub inode: u64,
}

/// Which copy of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The copy in the run's input directory.
    Input,
    /// The copy in the sandbox's home directory.
    Inside,
}

/// A file as it was last seen. Without facts, the file is deleted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileRecord {
    pub side: Side,
    pub path: String,
    pub facts: Option<FileFacts>,
    pub hash: Option<FileHash>,
}
