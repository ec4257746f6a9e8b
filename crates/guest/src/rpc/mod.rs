//! The part of the Connect protocol that the guest needs: POST over HTTP/1.1, JSON and protobuf, unary calls and streams, no
//! compression. `server` holds the methods' paths.

mod body;
mod call;
mod codec;
mod dispatch;
mod error;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzz;

pub(crate) use body::MessageStream;
pub(crate) use call::Call;
pub(crate) use codec::{Codec, end_frame, frame_message, stream_reply};
pub(crate) use dispatch::{client_stream, server_stream, unary, unknown_method};
pub(crate) use error::{Code, RpcError};
