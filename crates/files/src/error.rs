//! Errors of operations in the workspace.

use std::io;

use rustix::io::Errno;

use crate::path::PathError;

/// Most are caused by the request. The last four are the server's.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    #[error(transparent)]
    Path(#[from] PathError),
    #[error("a key must name a file")]
    EmptyKey,
    #[error("keys that end in `.metadata` are reserved for metadata")]
    MetadataKey,
    #[error("there is nothing at {0:?}")]
    NotFound(String),
    #[error("{0:?} is a directory")]
    IsDirectory(String),
    #[error("{0:?} is not a directory, or one of its parents is not")]
    NotDirectory(String),
    #[error("{0:?} is not a regular file")]
    NotRegular(String),
    #[error("{0:?} already exists")]
    Exists(String),
    #[error("the file is larger than {0} bytes")]
    TooLarge(u64),
    #[error("the files would take more than {0} bytes")]
    Quota(u64),
    #[error("{0:?} has too many entries")]
    TooMany(String),
    #[error("the workspace is full")]
    Full,
    #[error("the file is incomplete")]
    Incomplete,
    #[error("the workspace is not available")]
    Workspace(#[from] crate::workspace::WorkspaceError),
    /// The workspace is mounted, but its object store or its daemon does not answer.
    #[error("could not {doing} {path:?}: the workspace does not respond")]
    Unavailable { doing: &'static str, path: String, source: io::Error },
    /// The task was aborted.
    #[error("the file operation was aborted")]
    Aborted,
    #[error("could not {doing} {path:?}")]
    Io { doing: &'static str, path: String, source: io::Error },
}

impl From<tokio::task::JoinError> for FileError {
    fn from(_: tokio::task::JoinError) -> Self {
        Self::Aborted
    }
}

impl FileError {
    /// Converts an error of the system into one that names the operation and the path.
    pub(crate) fn doing(doing: &'static str, path: &str) -> impl FnOnce(io::Error) -> Self {
        move |source| {
            let path = path.to_owned();
            match source.raw_os_error().map(Errno::from_raw_os_error) {
                Some(Errno::NOENT) => Self::NotFound(path),
                Some(Errno::ISDIR) => Self::IsDirectory(path),
                Some(Errno::NOTDIR) => Self::NotDirectory(path),
                Some(Errno::INVAL | Errno::NXIO) => Self::NotRegular(path),
                Some(Errno::EXIST | Errno::NOTEMPTY) => Self::Exists(path),
                Some(Errno::OVERFLOW) => Self::TooMany(path),
                Some(Errno::NOSPC | Errno::DQUOT) => Self::Full,
                Some(Errno::NAMETOOLONG) => Self::Path(PathError::TooLong),
                // What a mount returns if its object store does not answer, or if its daemon is gone.
                Some(Errno::IO | Errno::NOTCONN | Errno::CONNABORTED) => Self::Unavailable { doing, path, source },
                _ => Self::Io { doing, path, source },
            }
        }
    }
}
