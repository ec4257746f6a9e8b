//! Files of the workspace as the API gives them out: those of executions by key, those of volumes by path.
//!
//! All of it works on plain directories below the root of the [`Workspace`], which code in sandboxes changes at the same
//! time. So nothing is believed about them: paths are resolved by the kernel below their own tree ([`tree`]), files
//! appear whole or not at all, and what others remove meanwhile is not there.
//!
//! [`Workspace`]: crate::Workspace

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
mod retention;
mod store;
mod temp;
mod transfer;
mod tree;
mod volume;
mod walk;

pub use error::FileError;
pub use info::StorageInfo;
pub use key::Key;
pub use list::{KeyQuery, ListedFile};
pub use metadata::Metadata;
pub use meter::FileLimits;
pub use offload::Offloaded;
pub(crate) use path::InnerPath;
pub use path::PathError;
pub use pieces::{exactly, pieces_of};
pub use put::Put;
pub use retention::{is_used, run_retention};
pub use store::{FileStore, Files, Opened};
pub use tree::Tree;
pub(crate) use volume::{EntryStat, Ownership, VolumeFiles};

use bytes::Bytes;

/// Takes the pieces of a file, and has it when they have all come. Dropped before that, nothing has changed.
pub trait FileSink: Send + 'static {
    /// What is told about the file in the end.
    type Done: Send + 'static;
    type Error: Send + 'static;

    fn write(&mut self, piece: &Bytes) -> Result<(), Self::Error>;
    fn finish(self) -> Result<Self::Done, Self::Error>;
}

/// How the names of files begin that are not whole yet. No key or path can be called so.
const UNFINISHED: &str = ".isopod-unfinished-";

/// Runs something that waits for the disk or for S3 where waiting is no harm.
pub async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, FileError> + Send + 'static,
) -> Result<T, FileError> {
    tokio::task::spawn_blocking(work).await.unwrap_or(Err(FileError::Aborted))
}
