//! The interface to a bucket, and the two kinds of bucket: S3 and a local directory.
//!
//! Keys are plain text. A key that ends in `/` is the marker of a directory. Every call may fail temporarily
//! (`StoreError::is_temporary`). Nothing is retried here, because only the caller knows how long it may take.

pub(crate) mod local;
pub(crate) mod prefixed;
pub(crate) mod s3;

use std::fmt::Debug;
use std::fs::File;
use std::ops::Range;
use std::sync::Arc;
use std::time::SystemTime;

use async_trait::async_trait;
use bytes::Bytes;

use crate::attributes::Metadata;

#[async_trait]
pub trait ObjectStore: Debug + Send + Sync + 'static {
    /// One page of what is directly below a prefix, or of everything below it if not `shallow`.
    async fn list(&self, request: &ListRequest) -> Result<Listing, StoreError>;

    /// The description of an object, or `None` if it does not exist.
    async fn head(&self, key: &str) -> Result<Option<ObjectInfo>, StoreError>;

    /// Reads bytes of an object that still has this tag. The range must be within the object.
    async fn get(&self, key: &str, tag: &str, range: Range<u64>) -> Result<Bytes, StoreError>;

    /// Writes an object and returns its tag. Readers never see a partial object.
    async fn put(&self, key: &str, content: Content, metadata: &Metadata) -> Result<String, StoreError>;

    /// Copies an object that still has this tag, with new metadata. Returns the tag of the copy.
    async fn copy(&self, from: &ObjectInfo, to: &str, metadata: &Metadata) -> Result<String, StoreError>;

    /// Deletes an object. It is not an error if it does not exist.
    async fn delete(&self, key: &str) -> Result<(), StoreError>;

    /// The maximum length of a key part between two `/`, if there is a limit.
    fn longest_part(&self) -> usize {
        usize::MAX
    }
}

/// Selects one page of a listing.
#[derive(Clone, Debug, Default)]
pub struct ListRequest {
    /// Empty, or ends in `/`.
    pub prefix: String,
    /// Only list what is directly below. Deeper objects appear as prefixes.
    pub shallow: bool,
    /// The maximum number of entries. `None` means as many as the store returns.
    pub limit: Option<usize>,
    /// The `next` value of the previous page.
    pub after: Option<String>,
}

/// One page of a listing.
#[derive(Clone, Debug, Default)]
pub struct Listing {
    pub objects: Vec<ObjectInfo>,
    /// The prefixes one level down, each complete and ending in `/`.
    pub prefixes: Vec<String>,
    /// Where the next page starts, if there is one.
    pub next: Option<String>,
}

/// The description of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectInfo {
    pub key: String,
    pub size: u64,
    /// Changes whenever the content does.
    pub tag: String,
    pub modified: SystemTime,
    /// `None` if the store does not include it in a listing.
    pub metadata: Option<Metadata>,
}

/// The content of a new object.
#[derive(Clone, Debug)]
pub enum Content {
    Bytes(Bytes),
    /// The first bytes of a file, up to this number.
    File(Arc<File>, u64),
}

/// Why a request to the store failed.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error("the bucket {0} does not exist")]
    NoBucket(String),
    #[error("the store refuses the credentials ({code})")]
    Denied { code: String },
    #[error("the bucket is in another region ({region})")]
    WrongRegion { region: String },
    #[error("object {0} does not exist")]
    NotFound(String),
    #[error("object {0} has changed")]
    Changed(String),
    /// A bucket can have an object and other objects below it. A directory cannot.
    #[error("object {0} conflicts with another object")]
    Conflict(String),
    #[error("the store answered {status} {code} to {what}")]
    Refused { what: &'static str, status: u16, code: String },
    #[error("the store could not be reached to {what}: {reason}")]
    Unreachable { what: &'static str, reason: String },
    #[error("the store sent an invalid response to {what}")]
    Garbled { what: &'static str },
    #[error("cannot {what} {path}")]
    Local { what: &'static str, path: String, source: std::io::Error },
}

impl StoreError {
    /// Whether it makes sense to try again.
    pub fn is_temporary(&self) -> bool {
        match self {
            Self::Refused { status, .. } => *status >= 500 || *status == 429 || *status == 408,
            Self::Unreachable { .. } | Self::Garbled { .. } => true,
            _ => false,
        }
    }
}
