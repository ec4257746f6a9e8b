//! Serializes messages.

use bytes::Bytes;
use isopod_wire::rpc::Message;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::guest::GuestError;

/// The format of messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Codec {
    /// Protobuf, which passes output through unchanged. If a guest does not support it, the call is repeated in JSON.
    #[default]
    Binary,
    /// JSON, which every guest supports, and which is readable on the wire.
    Json,
}

impl Codec {
    pub(super) fn unary_type(self) -> &'static str {
        match self {
            Self::Binary => "application/proto",
            Self::Json => "application/json",
        }
    }

    pub(super) fn stream_type(self) -> &'static str {
        match self {
            Self::Binary => "application/connect+proto",
            Self::Json => "application/connect+json",
        }
    }

    pub(super) fn encode<M: Message + Serialize>(self, message: &M) -> Vec<u8> {
        match self {
            Self::Binary => message.encode_to_vec(),
            Self::Json => serde_json::to_vec(message).expect("generated messages have only string keys"),
        }
    }

    pub(super) fn decode<M: Message + DeserializeOwned>(self, mut bytes: Bytes) -> Result<M, GuestError> {
        let unreadable = |error: &dyn std::fmt::Display| GuestError::Protocol(format!("unreadable message: {error}"));
        match self {
            Self::Binary => M::decode(&mut bytes).map_err(|error| unreadable(&error)),
            Self::Json => serde_json::from_slice(&bytes).map_err(|error| unreadable(&error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use isopod_wire::rpc::filesystem::ListDirResponse;
    use isopod_wire::rpc::process::StartResponse;
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn any_bytes_decode_or_are_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            for codec in [Codec::Json, Codec::Binary] {
                let _ = codec.decode::<StartResponse>(bytes.clone().into());
                let _ = codec.decode::<ListDirResponse>(bytes.clone().into());
            }
        }
    }
}
