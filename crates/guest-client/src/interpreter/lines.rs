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
    /// Whether the bytes up to the next line break belong to a line that is dropped.
    skipping: bool,
}

impl Lines {
    pub(super) fn up_to(longest: usize) -> Self {
        Self { bytes: BytesMut::new(), longest, searched: 0, skipping: false }
    }

    /// How many bytes are waiting for their line break.
    pub(super) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Drops the incomplete line, including what arrives of it later.
    pub(super) fn skip(&mut self) {
        self.bytes = BytesMut::new();
        self.searched = 0;
        self.skipping = true;
    }

    /// Returns false if the line has become too long.
    #[must_use]
    pub(super) fn push(&mut self, mut bytes: &[u8]) -> bool {
        if self.skipping {
            let Some(end) = bytes.iter().position(|byte| *byte == b'\n') else { return true };
            bytes = &bytes[end + 1..];
            self.skipping = false;
        }
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

    #[test]
    fn a_skipped_line_is_dropped_to_its_end_and_the_next_is_whole() {
        let mut lines = Lines::up_to(60);
        assert!(lines.push(b"long"));
        lines.skip();
        assert!(lines.push(b" and longer") && lines.len() == 0);
        assert!(lines.push(b" still\nnext\n"));
        assert_eq!(lines.take().unwrap(), "next");
    }

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
