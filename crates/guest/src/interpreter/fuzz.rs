//! Fuzzed: a kernel's stream and its output.

use bytes::BytesMut;
use serde::Deserialize;
use serde_json::Value;

use super::events::{Kind, Source, kind};
use super::lines::Lines;
use super::output::Output;

/// Clients accept more than a `Value` does, such as numbers that are too large for it.
#[derive(Deserialize)]
struct End {
    r#type: String,
}

/// The first byte is the size of the pieces in which the rest arrives. The rest is taken as a stream of lines and as output.
pub fn kernel_stream(data: &[u8]) {
    let Some((step, data)) = data.split_first() else { return };
    let step = usize::from(*step) + 1;
    take_lines(data, step);
    print(data, step);
}

fn take_lines(data: &[u8], step: usize) {
    let mut lines = Lines::default();
    let mut taken = Vec::new();
    for piece in data.chunks(step) {
        lines.room(piece.len()).extend_from_slice(piece);
        while let Some(line) = lines.take() {
            if kind(line.trim_ascii_end()) == Kind::End {
                let text = str::from_utf8(&line).expect("the end of a cell is text");
                let end: End = serde_json::from_str(text).expect("the end of a cell is JSON");
                assert_eq!(end.r#type, "end_of_execution");
            }
            taken.extend_from_slice(&line);
        }
    }
    let whole = memchr::memrchr(b'\n', data).map_or(0, |at| at + 1);
    assert_eq!(taken, data[..whole], "every whole line arrives as it was");
}

/// Output in any pieces becomes the same text, in whole lines of JSON.
fn print(data: &[u8], step: usize) {
    let mut out = BytesMut::new();
    let mut output = Output::new(u64::MAX);
    for piece in data.chunks(step) {
        output.put(Source::Stdout, piece, &mut out);
    }
    output.finish(&mut out);
    let events = out[..].split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    let text = |line: &[u8]| {
        let event: Value = serde_json::from_slice(line).expect("an event is JSON");
        event["text"].as_str().expect("printed text is text").to_owned()
    };
    assert_eq!(events.map(text).collect::<String>(), String::from_utf8_lossy(data));
}
