//! Entry points for the fuzz targets in `/fuzz`: the parsers of what programs in a sandbox and buckets send. Each
//! function takes any bytes and panics if its parser breaks a promise.

pub use crate::fuse::fuzz::fuse_request;
pub use crate::object::s3::fuzz::s3_answer;
