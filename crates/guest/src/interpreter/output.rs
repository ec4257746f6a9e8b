//! Converts what a cell prints from bytes to events. Characters that are cut between two reads are joined, bytes that are not
//! UTF-8 become U+FFFD, and the output is truncated once the cell has printed too much.

use std::borrow::Cow;
use std::time::SystemTime;

use bytes::BytesMut;

use super::events::{Source, put_output};

/// How much one cell may print to both streams together.
pub(super) const MAX_PRINTED: u64 = 1 << 30;
const TRUNCATED_NOTE: &str = "\n[isopod: the rest of the output is left out, this cell printed more than 1 GiB]\n";

/// The output of one cell.
#[derive(Debug)]
pub(super) struct Output {
    stdout: Decoder,
    stderr: Decoder,
    left: u64,
    cut: bool,
}

impl Output {
    pub(super) fn new(at_most: u64) -> Self {
        Self { stdout: Decoder::default(), stderr: Decoder::default(), left: at_most, cut: false }
    }

    /// Appends events for printed bytes.
    pub(super) fn put(&mut self, source: Source, data: &[u8], out: &mut BytesMut) {
        if self.cut {
            return;
        }
        let allowed = data.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
        let decoder = match source {
            Source::Stdout => &mut self.stdout,
            Source::Stderr => &mut self.stderr,
        };
        let text = decoder.decode(&data[..allowed]);
        if !text.is_empty() {
            put_output(source, &text, SystemTime::now(), out);
        }
        self.left -= allowed as u64;
        if allowed < data.len() {
            self.cut = true;
            put_output(Source::Stderr, TRUNCATED_NOTE, SystemTime::now(), out);
        }
    }

    /// Appends a replacement for characters that stayed incomplete.
    pub(super) fn finish(&mut self, out: &mut BytesMut) {
        for (source, decoder) in [(Source::Stdout, &mut self.stdout), (Source::Stderr, &mut self.stderr)] {
            if !std::mem::take(&mut decoder.begun).is_empty() && !self.cut {
                put_output(source, "\u{fffd}", SystemTime::now(), out);
            }
        }
    }
}

/// Decodes text that arrives in pieces.
#[derive(Debug, Default)]
struct Decoder {
    /// The first bytes of an incomplete character; three at most.
    begun: Vec<u8>,
}

impl Decoder {
    fn decode<'a>(&mut self, data: &'a [u8]) -> Cow<'a, str> {
        if self.begun.is_empty() {
            return self.split(data);
        }
        let mut whole = std::mem::take(&mut self.begun);
        whole.extend_from_slice(data);
        Cow::Owned(self.split(&whole).into_owned())
    }

    /// The text of `data` without an incomplete character at its end.
    fn split<'a>(&mut self, data: &'a [u8]) -> Cow<'a, str> {
        let whole = data.len() - cut_character(data);
        self.begun = data[whole..].to_vec();
        String::from_utf8_lossy(&data[..whole])
    }
}

/// How many bytes at the end are the start of an incomplete character.
fn cut_character(data: &[u8]) -> usize {
    let tail = &data[data.len().saturating_sub(3)..];
    let Some(back) = tail.iter().rev().position(|byte| byte & 0xc0 != 0x80) else { return 0 };
    let start = tail.len() - 1 - back;
    match std::str::from_utf8(&tail[start..]) {
        Err(error) if error.error_len().is_none() => tail.len() - start,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::Value;

    use super::*;

    /// What a client reads on both streams.
    fn read(out: &[u8]) -> (String, String) {
        let (mut stdout, mut stderr) = (String::new(), String::new());
        for line in out.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            let event: Value = serde_json::from_slice(line).unwrap();
            let sink = if event["type"] == "stdout" { &mut stdout } else { &mut stderr };
            sink.push_str(event["text"].as_str().unwrap());
        }
        (stdout, stderr)
    }

    proptest! {
        #[test]
        fn text_is_the_same_wherever_it_is_cut(text in "[a\u{e9}\u{20ac}\u{1f600}\u{0}\n\"]{0,40}", cut in 1usize..6) {
            let (mut output, mut out) = (Output::new(MAX_PRINTED), BytesMut::new());
            for piece in text.as_bytes().chunks(cut) {
                output.put(Source::Stdout, piece, &mut out);
            }
            output.finish(&mut out);
            prop_assert_eq!(read(&out), (text, String::new()));
        }

        #[test]
        fn bytes_that_are_no_text_are_replaced_as_if_they_came_at_once(
            data in proptest::collection::vec(prop_oneof![any::<u8>(), Just(0xe2), Just(0x82), Just(0xf0), Just(b'a')], 0..40),
            cut in 1usize..6,
        ) {
            let (mut output, mut out) = (Output::new(MAX_PRINTED), BytesMut::new());
            for piece in data.chunks(cut) {
                output.put(Source::Stderr, piece, &mut out);
            }
            output.finish(&mut out);
            prop_assert_eq!(read(&out).1, String::from_utf8_lossy(&data).into_owned());
        }
    }

    #[test]
    fn too_much_output_is_truncated_with_a_note_on_stderr() {
        let (mut output, mut out) = (Output::new(10), BytesMut::new());
        for _ in 0..5 {
            output.put(Source::Stdout, b"abcd", &mut out);
            output.put(Source::Stderr, b"E", &mut out);
        }
        output.finish(&mut out);
        assert_eq!(read(&out), ("abcdabcd".to_owned(), format!("EE{TRUNCATED_NOTE}")));
    }
}
