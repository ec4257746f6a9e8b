//! The output of a command or of code, as much of it as a result may hold: its beginning and its end.

use std::collections::VecDeque;

use crate::text::visible;

/// Keeps the first and the last bytes of a stream.
#[derive(Debug)]
pub(crate) struct Kept {
    half: usize,
    head: Vec<u8>,
    tail: VecDeque<u8>,
    dropped: u64,
}

impl Kept {
    /// Keeps at most this many bytes.
    pub(crate) fn up_to(most: usize) -> Self {
        Self { half: most / 2, head: Vec::new(), tail: VecDeque::new(), dropped: 0 }
    }

    pub(crate) fn push(&mut self, bytes: &[u8]) {
        let (first, rest) = bytes.split_at(bytes.len().min(self.half - self.head.len()));
        self.head.extend_from_slice(first);
        // Of a large piece, only the end can stay.
        let skipped = rest.len().saturating_sub(self.half);
        self.dropped += skipped as u64;
        self.tail.extend(&rest[skipped..]);
        let over = self.tail.len().saturating_sub(self.half);
        self.dropped += over as u64;
        self.tail.drain(..over);
    }

    pub(crate) fn is_truncated(&self) -> bool {
        self.dropped > 0
    }

    /// The text, with a line that says what is missing. Bytes that are no UTF-8 are replaced.
    pub(crate) fn text(&self) -> String {
        let tail: Vec<u8> = self.tail.iter().copied().collect();
        if self.dropped == 0 {
            return String::from_utf8_lossy(&[self.head.as_slice(), &tail].concat()).into_owned();
        }
        let (head, tail) = (String::from_utf8_lossy(&self.head), String::from_utf8_lossy(&tail));
        format!("{head}\n[{} bytes are left out here]\n{tail}", self.dropped)
    }
}

/// What was written, for a text block.
pub(crate) fn sections(stdout: &str, stderr: &str) -> String {
    let mut text = visible(stdout.trim_end_matches('\n'));
    if !stderr.is_empty() {
        if !text.is_empty() {
            text.push('\n');
        }
        text.push_str("stderr:\n");
        text.push_str(&visible(stderr.trim_end_matches('\n')));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_beginning_and_the_end_stay() {
        let mut kept = Kept::up_to(8);
        kept.push(b"abc");
        kept.push(b"defgh");
        assert_eq!((kept.text().as_str(), kept.is_truncated()), ("abcdefgh", false));
        kept.push(b"0123456789");
        assert_eq!(kept.text(), "abcd\n[10 bytes are left out here]\n6789");
    }

    #[test]
    fn a_character_across_the_two_halves_stays_whole() {
        let mut kept = Kept::up_to(4);
        kept.push("aé€".as_bytes());
        assert!(kept.is_truncated());
        let mut kept = Kept::up_to(6);
        kept.push("aé€".as_bytes());
        assert_eq!(kept.text(), "aé€");
    }

    #[test]
    fn no_piece_takes_more_memory_than_the_limit() {
        let mut kept = Kept::up_to(100);
        for _ in 0..10 {
            kept.push(&[b'x'; 10_000]);
            assert!(kept.head.len() + kept.tail.len() <= 100);
        }
        assert_eq!(kept.dropped, 100_000 - 100);
    }
}
