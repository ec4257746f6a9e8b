//! Splits a kernel's stream into lines.

use bytes::{Bytes, BytesMut};

/// The longest line: enough for a result with a large image.
pub(super) const MAX_LINE: usize = 256 << 20;

/// Bytes that have arrived and are not yet taken.
#[derive(Debug, Default)]
pub(super) struct Lines {
    bytes: BytesMut,
    /// How many of the first bytes are known to have no line break.
    searched: usize,
}

impl Lines {
    /// The buffer for what arrives next.
    pub(super) fn room(&mut self, at_least: usize) -> &mut BytesMut {
        self.bytes.reserve(at_least);
        &mut self.bytes
    }

    /// How many bytes are waiting.
    pub(super) fn len(&self) -> usize {
        self.bytes.len()
    }

    pub(super) fn is_too_long(&self) -> bool {
        self.searched > MAX_LINE
    }

    /// The first bytes of what is waiting.
    pub(super) fn start(&self, at_most: usize) -> &[u8] {
        &self.bytes[..self.bytes.len().min(at_most)]
    }

    /// Takes the next whole line with its line break.
    pub(super) fn take(&mut self) -> Option<Bytes> {
        let Some(at) = memchr::memchr(b'\n', &self.bytes[self.searched..]) else {
            self.searched = self.bytes.len();
            return None;
        };
        let line = self.bytes.split_to(self.searched + at + 1).freeze();
        self.searched = 0;
        Some(line)
    }

    /// Frees the memory that a long line needed.
    pub(super) fn shrink(&mut self) {
        if self.bytes.is_empty() {
            *self = Self::default();
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn lines_come_out_whole_however_they_are_cut(text in "[ab\n]{0,60}", cut in 1usize..9) {
            let mut lines = Lines::default();
            let mut taken = String::new();
            for piece in text.as_bytes().chunks(cut) {
                lines.room(piece.len()).extend_from_slice(piece);
                while let Some(line) = lines.take() {
                    prop_assert!(line.ends_with(b"\n") && line.iter().filter(|byte| **byte == b'\n').count() == 1);
                    taken.push_str(std::str::from_utf8(&line).unwrap());
                }
            }
            prop_assert_eq!(taken.as_str(), text.rfind('\n').map_or("", |at| &text[..=at]));
        }
    }
}
