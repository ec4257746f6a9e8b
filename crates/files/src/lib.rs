//! Files of the workspace as the API exposes them: those of executions by key, those of volumes by path.
//!
//! All operations work on plain directories below the root of the [`Workspace`], which code in sandboxes changes at the
//! same time. Therefore nothing is assumed about them: the kernel resolves paths below their own tree ([`tree`]), files
//! appear complete or not at all, and entries that are removed concurrently count as missing.
//!
//! [`Workspace`]: workspace::Workspace

mod default_mount;
mod error;
mod execution;
mod info;
mod key;
mod list;
mod metadata;
mod meter;
mod offload;
mod path;
mod pieces;
mod put;
mod refusal;
mod store;
mod temp;
mod transfer;
mod tree;
mod volume;
mod walk;
pub mod workspace;

pub use default_mount::{DefaultMountError, DefaultMounts, EVERY_TEAM};
pub use error::FileError;
pub use info::StorageInfo;
pub use key::Key;
pub use list::{KeyQuery, ListedFile};
pub use metadata::Metadata;
pub use meter::FileLimits;
pub use offload::Offloaded;
pub use path::{InnerPath, PathError};
pub use pieces::{exactly, pieces_of};
pub use put::Put;
pub use store::{FileStore, Files, Opened};
pub use tree::Tree;
pub use volume::{EntryStat, Ownership, VolumeFiles};

use bytes::Bytes;

/// Receives the pieces of a file. The file exists after `finish`. If the sink is dropped before that, nothing has
/// changed.
pub trait FileSink: Send + 'static {
    /// What `finish` returns about the file.
    type Done: Send + 'static;
    type Error: Send + 'static;

    fn write(&mut self, piece: &Bytes) -> Result<(), Self::Error>;
    fn finish(self) -> Result<Self::Done, Self::Error>;
}

/// The prefix for names of incomplete files. Keys and paths cannot have such a name.
const UNFINISHED: &str = ".isopod-unfinished-";

/// Runs a function that waits for the disk or for S3 on a thread that may block.
pub async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, FileError> + Send + 'static,
) -> Result<T, FileError> {
    tokio::task::spawn_blocking(work).await.unwrap_or(Err(FileError::Aborted))
}
