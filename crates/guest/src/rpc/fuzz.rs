//! Fuzzed: requests of the Connect protocol.

use bytes::BytesMut;
use isopod_wire::rpc::{Message, filesystem, process};
use serde::de::DeserializeOwned;

use super::Codec;
use super::body::take_frame;

/// The first byte says in which pieces the stream arrives. Every frame is read as every message, in both codecs.
pub fn connect_request(data: &[u8]) {
    let Some((step, data)) = data.split_first() else { return };
    let mut buffer = BytesMut::new();
    let mut taken = 0;
    for piece in data.chunks(usize::from(*step) + 1) {
        buffer.extend_from_slice(piece);
        loop {
            match take_frame(&mut buffer) {
                Ok(Some((flags, payload))) => {
                    assert_eq!(data[taken], flags);
                    assert_eq!(payload, data[taken + 5..][..payload.len()]);
                    taken += 5 + payload.len();
                    read_message(&payload);
                }
                Ok(None) => break,
                Err(_) => return,
            }
        }
    }
    assert_eq!(taken + buffer.len(), data.len(), "no byte is lost");
}

fn read_message(payload: &[u8]) {
    decode::<process::StartRequest>(payload);
    decode::<process::ConnectRequest>(payload);
    decode::<process::SendInputRequest>(payload);
    decode::<process::StreamInputRequest>(payload);
    decode::<process::SendSignalRequest>(payload);
    decode::<process::UpdateRequest>(payload);
    decode::<filesystem::ListDirRequest>(payload);
    decode::<filesystem::MoveRequest>(payload);
    decode::<filesystem::WatchDirRequest>(payload);
    decode::<filesystem::GetWatcherEventsRequest>(payload);
}

fn decode<M: Message + DeserializeOwned>(payload: &[u8]) {
    for codec in [Codec::Json, Codec::Proto] {
        let _ = codec.decode::<M>(payload);
    }
}
