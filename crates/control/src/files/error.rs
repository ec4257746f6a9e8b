//! Why something was not done in the workspace.

use std::io;

use rustix::io::Errno;

use super::path::PathError;

/// Most are the caller's doing; trouble of ours are the last four.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    #[error(transparent)]
    Path(#[from] PathError),
    #[error("a key must name a file")]
    EmptyKey,
    #[error("keys that end in `.metadata` are kept for what is noted about files")]
    MetadataKey,
    #[error("there is nothing at {0:?}")]
    NotFound(String),
    #[error("{0:?} is a directory")]
    IsDirectory(String),
    #[error("{0:?} is not a directory, or goes through something that is none")]
    NotDirectory(String),
    #[error("{0:?} is no regular file")]
    NotRegular(String),
    #[error("there is something at {0:?} already")]
    Exists(String),
    #[error("the file is larger than {0} bytes")]
    TooLarge(u64),
    #[error("the files would take more than {0} bytes")]
    Quota(u64),
    #[error("{0:?} has too many entries to look at")]
    TooMany(String),
    #[error("there is no room left in the workspace")]
    Full,
    #[error("the file did not come to its end")]
    Cut,
    #[error("the workspace is not there")]
    Workspace(#[from] crate::workspace::WorkspaceError),
    /// The files are there, and their store or the one who serves them does not answer.
    #[error("the workspace did not answer in time to {doing} {path:?}")]
    Away { doing: &'static str, path: String, source: io::Error },
    /// The work was given up on the way.
    #[error("the work on the files did not end")]
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
    /// Turns an error of the system into one that says what was being done to what.
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
                // What a mount says whose store does not answer, and one that nobody serves.
                Some(Errno::IO | Errno::NOTCONN | Errno::CONNABORTED) => Self::Away { doing, path, source },
                _ => Self::Io { doing, path, source },
            }
        }
    }
}
