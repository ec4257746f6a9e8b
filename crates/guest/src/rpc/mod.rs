//! The Connect protocol over HTTP/1.1, just what the guest needs: POST, JSON and protobuf, unary and streams, no
//! compression. Which method does what stands in `route`.

mod body;
mod call;
mod codec;
mod error;
mod route;

pub(crate) use body::MessageStream;
pub(crate) use call::Call;
pub(crate) use codec::{Codec, end_frame, frame_message, stream_reply};
pub(crate) use error::{Code, RpcError};
pub(crate) use route::{serve, unknown_method};
