//! Fuzz targets for the frames of streams.

use bytes::Bytes;
use isopod_wire::rpc::Message;
use serde::de::DeserializeOwned;

use super::Codec;
use super::frames::{Frame, Frames};
use super::stream::read_end;

/// Shows each message of a stream, and asserts that no byte is lost.
pub(in crate::guest) fn take_frames(data: &[u8], step: usize, mut show: impl FnMut(&Bytes)) {
    let (mut frames, mut taken, mut pushed) = (Frames::default(), 0, 0);
    for piece in data.chunks(step) {
        frames.push(piece);
        pushed += piece.len();
        loop {
            let payload = match frames.take() {
                Ok(Some(Frame::Message(payload))) => {
                    show(&payload);
                    payload
                }
                Ok(Some(Frame::End(payload))) => {
                    let _ = read_end(&payload);
                    payload
                }
                Ok(None) => break,
                Err(_) => return,
            };
            assert_eq!(payload, data[taken + 5..][..payload.len()]);
            taken += 5 + payload.len();
            assert!(taken <= pushed);
        }
    }
}

pub(in crate::guest) fn decode<M: Message + DeserializeOwned>(codec: Codec, payload: &Bytes) -> Option<M> {
    codec.decode(payload.clone()).ok()
}
