//! Tracks the frames of a Connect stream, so that the server can end a stream with an error that the client
//! understands, rather than break the connection.

use bytes::Bytes;
use http::{HeaderMap, header};

/// The position in a stream.
#[derive(Debug, Default)]
pub(super) struct Frames {
    /// The number of bytes of the current frame's head that have passed, and the length read from them so far.
    head: u8,
    length: u32,
    /// Bytes of the current frame that are still to come after its head.
    left: u32,
}

/// Why the server ends a stream.
#[derive(Clone, Copy, Debug)]
pub(super) enum StreamEnd {
    SandboxPaused,
    ServerStops,
}

/// The size of a frame's head: flags and length.
const HEAD: u8 = 5;

impl Frames {
    /// Returns a tracker if the body of a response with these headers is a Connect stream.
    pub(super) fn of(headers: &HeaderMap) -> Option<Self> {
        let kind = headers.get(header::CONTENT_TYPE)?.to_str().ok()?;
        kind.starts_with("application/connect+").then(Self::default)
    }

    /// Records that these bytes have passed.
    pub(super) fn pass(&mut self, mut data: &[u8]) {
        while let [first, rest @ ..] = data {
            if self.left > 0 {
                let taken = data.len().min(self.left as usize);
                // At most `left`, so the conversion cannot fail.
                self.left -= u32::try_from(taken).unwrap_or(self.left);
                data = &data[taken..];
                continue;
            }
            // The first byte of a head has flags. The others are the length.
            self.length = if self.head == 0 { 0 } else { self.length << 8 | u32::from(*first) };
            self.head += 1;
            if self.head == HEAD {
                (self.head, self.left) = (0, self.length);
            }
            data = rest;
        }
    }

    /// Returns the last frame of a stream that ends now, or `None` in the middle of another frame.
    pub(super) fn end_frame(&self, why: StreamEnd) -> Option<Bytes> {
        const END_OF_STREAM: u8 = 2;
        if self.head != 0 || self.left != 0 {
            return None;
        }
        let message = match why {
            StreamEnd::SandboxPaused => "the sandbox was paused; connect to it again",
            StreamEnd::ServerStops => "the server is stopping; connect to the process again once it is back",
        };
        let message = format!(r#"{{"error":{{"code":"unavailable","message":"{message}"}}}}"#);
        let mut frame = vec![END_OF_STREAM];
        frame.extend(u32::try_from(message.len()).unwrap_or(0).to_be_bytes());
        frame.extend(message.as_bytes());
        Some(frame.into())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_farewell_comes_only_between_frames(lengths in prop::collection::vec(0_usize..300, 0..6), cut in any::<prop::sample::Index>(), piece in 1_usize..64) {
            let (mut bytes, mut ends) = (Vec::new(), vec![0]);
            for length in lengths {
                bytes.push(0);
                bytes.extend((length as u32).to_be_bytes());
                bytes.extend(vec![0xff; length]);
                ends.push(bytes.len());
            }
            let cut = cut.index(bytes.len() + 1);
            let mut frames = Frames::default();
            for piece in bytes[..cut].chunks(piece) {
                frames.pass(piece);
            }
            prop_assert_eq!(frames.end_frame(StreamEnd::SandboxPaused).is_some(), ends.contains(&cut));
        }
    }
}
