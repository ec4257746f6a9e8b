//! What a program writes: its lines as they arrive, and its end for the error that says why it failed.

/// A longer line is cut.
const MAX_LINE_BYTES: usize = 16 << 10;

/// Keeps the last bytes of an output.
#[derive(Debug)]
pub struct OutputTail {
    kept: Vec<u8>,
    most: usize,
    is_cut: bool,
}

impl OutputTail {
    /// Keeps at most so many bytes.
    pub fn new(most: usize) -> Self {
        Self { kept: Vec::new(), most, is_cut: false }
    }

    pub fn push(&mut self, bytes: &[u8]) {
        self.kept.extend_from_slice(bytes);
        let surplus = self.kept.len().saturating_sub(self.most);
        self.is_cut |= surplus > 0;
        self.kept.drain(..surplus);
    }

    /// Its lines. It begins with a whole character, wherever it was cut.
    pub fn text(&self) -> String {
        let is_inside = |byte: &&u8| self.is_cut && (0x80..0xc0).contains(*byte);
        let begin = self.kept.iter().take(3).take_while(is_inside).count();
        String::from_utf8_lossy(&self.kept[begin..]).trim().to_owned()
    }
}

/// Splits an output into lines, and keeps the end of it.
#[derive(Debug)]
pub struct OutputLines {
    pub tail: OutputTail,
    line: Vec<u8>,
}

impl OutputLines {
    /// Keeps at most so many bytes of the end.
    pub fn new(most: usize) -> Self {
        Self { tail: OutputTail::new(most), line: Vec::new() }
    }

    /// Returns the lines that these bytes complete, without empty ones.
    pub fn push(&mut self, bytes: &[u8]) -> Vec<String> {
        self.tail.push(bytes);
        let mut lines = Vec::new();
        for byte in bytes {
            match byte {
                b'\n' => lines.extend(self.rest()),
                // Progress bars overwrite their line.
                b'\r' => self.line.clear(),
                byte if self.line.len() < MAX_LINE_BYTES => self.line.push(*byte),
                _ => {}
            }
        }
        lines
    }

    /// The line that has no end yet.
    pub fn rest(&mut self) -> Option<String> {
        let line = String::from_utf8_lossy(&std::mem::take(&mut self.line)).trim_end().to_owned();
        (!line.is_empty()).then_some(line)
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

    #[test]
    fn output_is_told_by_lines_and_its_end_is_kept() {
        let mut output = OutputLines::new(2000);
        assert!(output.push(b"one").is_empty());
        assert_eq!(output.push(b" line\n10%\r20%\r\n\nlast"), ["one line"]);
        assert_eq!(output.rest().as_deref(), Some("last"));
        output.push(&[b'x'; 5000]);
        assert_eq!(output.tail.text(), "x".repeat(2000));
    }
}
