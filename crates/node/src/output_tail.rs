//! The end of what a program wrote, for the error that says why it failed.

/// Keeps the last bytes of an output.
#[derive(Debug)]
pub(crate) struct OutputTail {
    kept: Vec<u8>,
    most: usize,
    is_cut: bool,
}

impl OutputTail {
    /// Keeps at most so many bytes.
    pub(crate) fn new(most: usize) -> Self {
        Self { kept: Vec::new(), most, is_cut: false }
    }

    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.kept.extend_from_slice(bytes);
        let surplus = self.kept.len().saturating_sub(self.most);
        self.is_cut |= surplus > 0;
        self.kept.drain(..surplus);
    }

    /// Its lines. It begins with a whole character, wherever it was cut.
    pub(crate) fn text(&self) -> String {
        let is_inside = |byte: &&u8| self.is_cut && (0x80..0xc0).contains(*byte);
        let begin = self.kept.iter().take(3).take_while(is_inside).count();
        String::from_utf8_lossy(&self.kept[begin..]).trim().to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_keeps_its_lines_and_begins_with_a_whole_character() {
        let mut tail = OutputTail::new(10);
        tail.push("× first\n".as_bytes());
        assert_eq!(tail.text(), "× first");
        tail.push("│ no\n╰─>".as_bytes());
        assert_eq!(tail.text(), "no\n╰─>");
        tail.push(b"a\nbc");
        assert_eq!(tail.text(), "─>a\nbc", "the first character has lost a byte");
    }

    #[test]
    fn bytes_that_are_no_text_stay_visible() {
        let mut tail = OutputTail::new(10);
        tail.push(b"\xbfbad");
        assert_eq!(tail.text(), "\u{fffd}bad");
    }
}
