//! Encodes and decodes messages, and the envelopes of streams: one byte of flags, four bytes of length, the message.

use bytes::{BufMut, Bytes, BytesMut};
use http::{HeaderValue, Response, StatusCode, header};
use isopod_wire::rpc::Message;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::http::{Body, Reply, full_body};
use crate::rpc::{Code, RpcError};

const FLAG_END: u8 = 2;

/// The encoding of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Codec {
    Json,
    Proto,
}

impl Codec {
    pub(crate) fn unary_from(content_type: &str) -> Option<Self> {
        match essence(content_type).as_str() {
            "application/json" => Some(Self::Json),
            "application/proto" => Some(Self::Proto),
            _ => None,
        }
    }

    pub(crate) fn stream_from(content_type: &str) -> Option<Self> {
        match essence(content_type).as_str() {
            "application/connect+json" => Some(Self::Json),
            "application/connect+proto" => Some(Self::Proto),
            _ => None,
        }
    }

    pub(crate) fn decode<M: Message + DeserializeOwned>(self, bytes: &[u8]) -> Result<M, RpcError> {
        let refuse = |error: &dyn std::fmt::Display| {
            RpcError::new(Code::InvalidArgument, format!("cannot read the request message: {error}"))
        };
        match self {
            // Some clients send an empty body for an empty message.
            Self::Json if bytes.is_empty() => Ok(M::default()),
            Self::Json => serde_json::from_slice(bytes).map_err(|error| refuse(&error)),
            Self::Proto => M::decode_from_slice(bytes).map_err(|error| refuse(&error)),
        }
    }

    fn encode<M: Message + Serialize>(self, message: &M) -> Vec<u8> {
        match self {
            Self::Json => serde_json::to_vec(message).expect("generated messages have only string keys"),
            Self::Proto => message.encode_to_vec(),
        }
    }
}

/// `text/plain` of `Text/Plain; charset=utf-8`.
fn essence(content_type: &str) -> String {
    content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase()
}

/// A message with its envelope.
pub(crate) fn frame_message<M: Message + Serialize>(codec: Codec, message: &M) -> Bytes {
    frame(0, &codec.encode(message))
}

/// The last frame of a stream.
pub(crate) fn end_frame(error: Option<&RpcError>) -> Bytes {
    let payload = match error {
        Some(error) => format!(r#"{{"error":{}}}"#, error.json()),
        None => "{}".to_owned(),
    };
    frame(FLAG_END, payload.as_bytes())
}

fn frame(flags: u8, payload: &[u8]) -> Bytes {
    let mut out = BytesMut::with_capacity(5 + payload.len());
    out.put_u8(flags);
    out.put_u32(payload.len() as u32);
    out.put_slice(payload);
    out.freeze()
}

/// The reply to a unary call.
pub(crate) fn unary_reply<M: Message + Serialize>(codec: Codec, result: Result<M, RpcError>) -> Reply {
    let (status, content_type, body) = match result {
        Ok(message) => {
            let content_type = match codec {
                Codec::Json => "application/json",
                Codec::Proto => "application/proto",
            };
            (StatusCode::OK, content_type, codec.encode(&message).into())
        }
        Err(error) => (error.code.status(), "application/json", Bytes::from(error.json())),
    };
    reply(status, content_type, full_body(body))
}

/// A stream whose body holds finished frames.
pub(crate) fn stream_reply(codec: Codec, body: Body) -> Reply {
    let content_type = match codec {
        Codec::Json => "application/connect+json",
        Codec::Proto => "application/connect+proto",
    };
    reply(StatusCode::OK, content_type, body)
}

/// A stream that failed before its first message.
pub(crate) fn failed_stream(codec: Codec, error: &RpcError) -> Reply {
    stream_reply(codec, full_body(end_frame(Some(error))))
}

/// A stream of one message: the reply to a client stream.
pub(crate) fn single_message_stream<M: Message + Serialize>(codec: Codec, message: &M) -> Reply {
    let mut frames = BytesMut::from(frame_message(codec, message));
    frames.put_slice(&end_frame(None));
    stream_reply(codec, full_body(frames.freeze()))
}

fn reply(status: StatusCode, content_type: &'static str, body: Body) -> Reply {
    let mut reply = Response::new(body);
    *reply.status_mut() = status;
    reply.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    reply
}

#[cfg(test)]
mod tests {
    use isopod_wire::rpc::process::{ListRequest, SendInputRequest, StartRequest};
    use proptest::prelude::*;

    use super::*;

    /// SDKs that are newer than the guest send fields that it does not know.
    #[test]
    fn unknown_fields_are_ignored_in_both_encodings() {
        let json = br#"{"process":{"cmd":"ls","args":["-l"],"later":{"a":[1]}},"stdin":false,"fromTheFuture":true}"#;
        let read: StartRequest = Codec::Json.decode(json).unwrap();
        assert_eq!((read.process.cmd.as_str(), read.stdin), ("ls", Some(false)));
        // Field 4 is `stdin`; 15 is nothing.
        let read: StartRequest = Codec::Proto.decode(&[4 << 3, 1, 15 << 3, 7]).unwrap();
        assert_eq!(read.stdin, Some(true));
    }

    #[test]
    fn content_types_are_told_apart() {
        assert_eq!(Codec::unary_from("Application/JSON; charset=utf-8"), Some(Codec::Json));
        assert_eq!(Codec::unary_from("application/connect+json"), None);
        assert_eq!(Codec::stream_from("application/connect+proto"), Some(Codec::Proto));
    }

    #[test]
    fn errors_end_a_stream_with_their_code() {
        let frame = end_frame(Some(&RpcError::new(Code::NotFound, "no \"x\"")));
        assert_eq!(frame[0], 2);
        assert_eq!(&frame[5..], br#"{"error":{"code":"not_found","message":"no \"x\""}}"#);
    }

    proptest! {
        #[test]
        fn any_bytes_decode_or_are_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            for codec in [Codec::Json, Codec::Proto] {
                let _ = codec.decode::<SendInputRequest>(&bytes);
                let _ = codec.decode::<ListRequest>(&bytes);
            }
        }
    }
}
