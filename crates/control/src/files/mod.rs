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

pub(crate) use error::FileError;
pub(crate) use execution::ExecutionName;
pub(crate) use key::Key;
pub(crate) use list::KeyQuery;
pub(crate) use metadata::Metadata;
pub use meter::FileLimits;
pub(crate) use path::InnerPath;
pub(crate) use pieces::pieces_of;
pub(crate) use retention::{is_used, run_retention};
pub(crate) use store::{FileStore, Files, Opened};
pub(crate) use volume::{EntryStat, Ownership, VolumeFiles};

use bytes::Bytes;

/// Takes the pieces of a file, and has it when they have all come. Dropped before that, nothing has changed.
pub(crate) trait FileSink: Send + 'static {
    /// What is told about the file in the end.
    type Done: Send + 'static;

    fn write(&mut self, piece: &Bytes) -> Result<(), FileError>;
    fn finish(self) -> Result<Self::Done, FileError>;
}

/// How the names of files begin that are not whole yet. No key or path can be called so.
const UNFINISHED: &str = ".isopod-unfinished-";

/// Runs something that waits for the disk or for S3 where waiting is no harm.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, FileError> + Send + 'static,
) -> Result<T, FileError> {
    tokio::task::spawn_blocking(work).await.unwrap_or(Err(FileError::Aborted))
}
