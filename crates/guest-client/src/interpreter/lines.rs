//! Splits a stream of bytes into lines.

use bytes::{Buf, Bytes, BytesMut};

/// Received bytes that were not consumed yet.
#[derive(Debug)]
pub(super) struct Lines {
    bytes: BytesMut,
    /// The maximum length of a line.
    longest: usize,
    /// How far the bytes were searched for a line break.
    searched: usize,
}

impl Lines {
    pub(super) fn up_to(longest: usize) -> Self {
        Self { bytes: BytesMut::new(), longest, searched: 0 }
    }

    /// Returns false if the line has become too long.
    #[must_use]
    pub(super) fn push(&mut self, bytes: &[u8]) -> bool {
        self.bytes.extend_from_slice(bytes);
        self.bytes.len() <= self.longest
    }

    /// Returns the next complete line, without its line break.
    pub(super) fn take(&mut self) -> Option<Bytes> {
        match self.bytes[self.searched..].iter().position(|byte| *byte == b'\n') {
            Some(at) => {
                let line = self.bytes.split_to(self.searched + at);
                self.bytes.advance(1);
                self.searched = 0;
                Some(line.freeze())
            }
            None => {
                self.searched = self.bytes.len();
                None
            }
        }
    }

    /// Returns the bytes after the last line break.
    pub(super) fn take_rest(&mut self) -> Bytes {
        self.searched = 0;
        self.bytes.split().freeze()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn lines_come_out_whole_however_they_are_cut(text in "[ab\n]{0,60}", cut in 1usize..9) {
            let mut lines = Lines::up_to(60);
            let mut taken = Vec::new();
            for piece in text.as_bytes().chunks(cut) {
                prop_assert!(lines.push(piece));
                while let Some(line) = lines.take() {
                    taken.push(String::from_utf8(line.to_vec()).unwrap());
                }
            }
            taken.push(String::from_utf8(lines.take_rest().to_vec()).unwrap());
            let expected: Vec<&str> = text.split('\n').collect();
            prop_assert_eq!(taken, expected);
        }
    }
}
