//! The parsers that read what programs in a sandbox and buckets send, for the fuzz targets in `/fuzz`. Each function takes any bytes
//! and panics when a promise of its parser does not hold.

pub use crate::fuse::fuzz::fuse_request;
pub use crate::object::s3::fuzz::s3_answer;
