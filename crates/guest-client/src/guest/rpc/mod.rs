//! The client side of the Connect protocol: unary calls and streams, JSON or protobuf, no compression.

mod call;
mod codec;
mod frames;
#[cfg(feature = "fuzzing")]
pub(super) mod fuzz;
mod stream;

pub use codec::Codec;

pub(crate) use call::{Caller, Options};
pub(crate) use stream::MessageStream;
