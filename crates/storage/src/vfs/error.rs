//! Why a file system call fails, and the error number that a program sees.

use rustix::io::Errno;

use crate::object::StoreError;

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
pub enum FsError {
    #[error("no such entry")]
    NotFound,
    #[error("the entry exists")]
    Exists,
    #[error("not a directory")]
    NotDirectory,
    #[error("is a directory")]
    IsDirectory,
    #[error("the directory is not empty")]
    NotEmpty,
    #[error("invalid arguments")]
    Invalid,
    #[error("the name, or the whole path as a key, is too long")]
    NameTooLong,
    #[error("the quota of the execution is used up")]
    Quota,
    #[error("the attributes do not fit into the metadata of an object")]
    NoRoom,
    #[error("no such attribute")]
    NoAttribute,
    #[error("the file system does not support this")]
    Unsupported,
    #[error("not permitted")]
    NotPermitted,
    #[error("the entry is gone")]
    Stale,
    #[error("the file would be too large")]
    TooLarge,
    #[error("the buffer is too small")]
    Range,
    #[error("the store did not answer in time")]
    Deadline,
    #[error("cannot {what} a local copy")]
    Local { what: &'static str, source: std::io::Error },
    #[error("the store failed")]
    Store(#[from] StoreError),
}

impl FsError {
    /// The error number for the program.
    pub fn errno(&self) -> Errno {
        match self {
            Self::NotFound => Errno::NOENT,
            Self::Exists => Errno::EXIST,
            Self::NotDirectory => Errno::NOTDIR,
            Self::IsDirectory => Errno::ISDIR,
            Self::NotEmpty => Errno::NOTEMPTY,
            Self::Invalid => Errno::INVAL,
            Self::NameTooLong => Errno::NAMETOOLONG,
            Self::Quota => Errno::DQUOT,
            Self::NoRoom => Errno::NOSPC,
            Self::NoAttribute => Errno::NODATA,
            Self::Unsupported => Errno::OPNOTSUPP,
            Self::NotPermitted => Errno::PERM,
            Self::Stale => Errno::STALE,
            Self::TooLarge => Errno::FBIG,
            Self::Range => Errno::RANGE,
            Self::Deadline | Self::Store(_) => Errno::IO,
            Self::Local { source, .. } => match Errno::from_io_error(source) {
                Some(full @ (Errno::NOSPC | Errno::DQUOT)) => full,
                _ => Errno::IO,
            },
        }
    }
}
