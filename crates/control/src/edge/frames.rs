//! Where the frames of a Connect stream begin and end, so that a stream that is cut can be ended in its own words: a
//! client then gets an error that it knows instead of a connection that broke.

use bytes::Bytes;
use http::{HeaderMap, header};

/// How far a stream has come.
#[derive(Debug, Default)]
pub(super) struct Frames {
    /// Bytes of the present frame's head that have passed, with what they say about its length.
    head: u8,
    length: u32,
    /// Bytes of the present frame that are still to come after its head.
    left: u32,
}

/// Why a stream is cut.
#[derive(Clone, Copy, Debug)]
pub(super) enum Farewell {
    SandboxPaused,
    ServerStops,
}

/// Flags and length.
const HEAD: u8 = 5;

impl Frames {
    /// For the body of an answer with these headers, if that is a Connect stream.
    pub(super) fn of(headers: &HeaderMap) -> Option<Self> {
        let kind = headers.get(header::CONTENT_TYPE)?.to_str().ok()?;
        kind.starts_with("application/connect+").then(Self::default)
    }

    /// These bytes have passed.
    pub(super) fn pass(&mut self, mut data: &[u8]) {
        while let [first, rest @ ..] = data {
            if self.left > 0 {
                let taken = data.len().min(self.left as usize);
                // It is at most what is left, so it fits.
                self.left -= u32::try_from(taken).unwrap_or(self.left);
                data = &data[taken..];
                continue;
            }
            // The first byte of a head has flags; the others are the length.
            self.length = if self.head == 0 { 0 } else { self.length << 8 | u32::from(*first) };
            self.head += 1;
            if self.head == HEAD {
                (self.head, self.left) = (0, self.length);
            }
            data = rest;
        }
    }

    /// The last frame of a stream that is cut; none in the middle of another one.
    pub(super) fn farewell(&self, why: Farewell) -> Option<Bytes> {
        const END_OF_STREAM: u8 = 2;
        if self.head != 0 || self.left != 0 {
            return None;
        }
        let message = match why {
            Farewell::SandboxPaused => "the sandbox was paused; connect to it again",
            Farewell::ServerStops => "the server is stopping; connect to the process again once it is back",
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
            prop_assert_eq!(frames.farewell(Farewell::SandboxPaused).is_some(), ends.contains(&cut));
        }
    }
}
