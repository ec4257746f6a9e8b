//! The envelopes of streams: one byte of flags, four bytes of length, and the message. They arrive in arbitrary pieces.

use bytes::{Buf, BufMut, Bytes, BytesMut};

use crate::guest::GuestError;

/// The maximum size of a message. Guests put at most 32 KiB of output into one, so a larger length is invalid.
const MAX_MESSAGE: usize = 1 << 20;
const HEAD: usize = 5;
const FLAG_COMPRESSED: u8 = 1;
const FLAG_END: u8 = 2;

/// The content of one envelope.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Frame {
    Message(Bytes),
    /// The last one. Always JSON, whatever the codec.
    End(Bytes),
}

/// Received bytes that were not consumed yet.
#[derive(Debug, Default)]
pub(super) struct Frames(BytesMut);

impl Frames {
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    /// Returns the next complete frame.
    pub(super) fn take(&mut self) -> Result<Option<Frame>, GuestError> {
        let Some((&[flags, a, b, c, d], _)) = self.0.split_first_chunk::<HEAD>() else { return Ok(None) };
        if flags & FLAG_COMPRESSED != 0 {
            return Err(GuestError::Protocol("a message is compressed, which was not requested".to_owned()));
        }
        let len = u32::from_be_bytes([a, b, c, d]) as usize;
        if len > MAX_MESSAGE {
            return Err(GuestError::Protocol(format!("a message claims to have {len} bytes")));
        }
        if self.0.len() < HEAD + len {
            return Ok(None);
        }
        self.0.advance(HEAD);
        let payload = self.0.split_to(len).freeze();
        Ok(Some(if flags & FLAG_END != 0 { Frame::End(payload) } else { Frame::Message(payload) }))
    }
}

/// Wraps a message in its envelope.
pub(super) fn frame(payload: &[u8]) -> Bytes {
    let len = u32::try_from(payload.len()).expect("callers send at most a few megabytes in one message");
    let mut out = BytesMut::with_capacity(HEAD + payload.len());
    out.put_u8(0);
    out.put_u32(len);
    out.put_slice(payload);
    out.freeze()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn huge_and_compressed_frames_are_refused() {
        for head in [[0, 255, 255, 255, 255], [1, 0, 0, 0, 0]] {
            let mut frames = Frames::default();
            frames.push(&head);
            assert!(frames.take().is_err());
        }
    }

    proptest! {
        #[test]
        fn frames_come_out_as_they_went_in_however_they_are_cut(
            messages in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..40), 0..8),
            cut in 1usize..17,
        ) {
            let bytes: Vec<u8> = messages.iter().flat_map(|message| frame(message)).collect();
            let mut frames = Frames::default();
            let mut taken = Vec::new();
            for piece in bytes.chunks(cut) {
                frames.push(piece);
                while let Some(Frame::Message(message)) = frames.take().unwrap() {
                    taken.push(message.to_vec());
                }
            }
            prop_assert_eq!(taken, messages);
        }

        #[test]
        fn any_bytes_are_frames_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
            let mut frames = Frames::default();
            frames.push(&bytes);
            while let Ok(Some(_)) = frames.take() {}
        }
    }
}
