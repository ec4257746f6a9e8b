//! Bodies of requests.

use bytes::Bytes;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Empty, Full};

/// Any error.
pub(crate) type BoxError = Box<dyn std::error::Error + Send + Sync>;
/// The body of a request.
pub type Body = UnsyncBoxBody<Bytes, BoxError>;

/// A body without bytes.
pub fn empty_body() -> Body {
    Empty::new().map_err(|never| match never {}).boxed_unsync()
}

/// A body that is in memory.
pub fn full_body(bytes: Bytes) -> Body {
    Full::new(bytes).map_err(|never| match never {}).boxed_unsync()
}
