//! What the file system asks of a bucket, and the two kinds of bucket: S3 and a local directory.
//!
//! Keys are plain text. A key that ends in `/` is the marker of a directory. Every call may fail for a while
//! (`StoreError::is_temporary`), and none is retried here: whoever calls knows how long it may take.

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

/// A bucket.
#[async_trait]
pub trait ObjectStore: Debug + Send + Sync + 'static {
    /// One page of what lies directly below a prefix, or of everything below it if not `shallow`.
    async fn list(&self, request: &ListRequest) -> Result<Listing, StoreError>;

    /// What an object is, or nothing if there is none.
    async fn head(&self, key: &str) -> Result<Option<ObjectInfo>, StoreError>;

    /// Bytes of an object that still has this tag. The range lies within the object.
    async fn get(&self, key: &str, tag: &str, range: Range<u64>) -> Result<Bytes, StoreError>;

    /// Writes an object and returns its tag. Nobody ever sees half of it.
    async fn put(&self, key: &str, content: Content, metadata: &Metadata) -> Result<String, StoreError>;

    /// Copies an object that still has this tag, with new metadata, and returns the tag of the copy.
    async fn copy(&self, from: &ObjectInfo, to: &str, metadata: &Metadata) -> Result<String, StoreError>;

    /// Removes an object. One that is not there is as good as removed.
    async fn delete(&self, key: &str) -> Result<(), StoreError>;

    /// The longest part of a key between two `/`, if there is such a limit.
    fn longest_part(&self) -> usize {
        usize::MAX
    }
}

/// Which page of which listing.
#[derive(Clone, Debug, Default)]
pub struct ListRequest {
    /// Empty, or ends in `/`.
    pub prefix: String,
    /// Only what lies directly below; what lies deeper is told by its first step.
    pub shallow: bool,
    /// At most so many entries; nothing means as many as the store gives.
    pub limit: Option<usize>,
    /// What the page before said.
    pub after: Option<String>,
}

/// One page of a listing.
#[derive(Clone, Debug, Default)]
pub struct Listing {
    pub objects: Vec<ObjectInfo>,
    /// The steps down, each a whole key prefix that ends in `/`.
    pub prefixes: Vec<String>,
    /// Where the next page starts, if there is one.
    pub next: Option<String>,
}

/// What is known of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectInfo {
    pub key: String,
    pub size: u64,
    /// Changes whenever the bytes do.
    pub tag: String,
    pub modified: SystemTime,
    /// Nothing if the store does not tell it in a listing.
    pub metadata: Option<Metadata>,
}

/// The bytes of a new object.
#[derive(Clone, Debug)]
pub enum Content {
    Bytes(Bytes),
    /// The first so many bytes of a file.
    File(Arc<File>, u64),
}

/// Why a store did not do it.
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
    /// A directory cannot hold an object and objects below it, as a bucket can.
    #[error("something stands in the way of object {0}")]
    Conflict(String),
    #[error("the store answered {status} {code} to {what}")]
    Refused { what: &'static str, status: u16, code: String },
    #[error("the store could not be reached to {what}: {reason}")]
    Unreachable { what: &'static str, reason: String },
    #[error("the answer of the store to {what} makes no sense")]
    Garbled { what: &'static str },
    #[error("cannot {what} {path}")]
    Local { what: &'static str, path: String, source: std::io::Error },
}

impl StoreError {
    /// True if it makes sense to ask again.
    pub fn is_temporary(&self) -> bool {
        match self {
            Self::Refused { status, .. } => *status >= 500 || *status == 429 || *status == 408,
            Self::Unreachable { .. } | Self::Garbled { .. } => true,
            _ => false,
        }
    }
}
