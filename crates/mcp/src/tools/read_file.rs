//! `read_file`: lines of a text file, or a picture.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use isopod_client::guest::{Download, GuestError};
use rmcp::model::ContentBlock;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Answered, Call, Effect, McpTool, Where};
use crate::text::visible;
use crate::tool_error::ToolError;

/// How much of a file is searched for its lines.
const MAX_SCANNED: u64 = 256 << 20;
/// The largest picture.
const MAX_IMAGE: usize = 3_900_000;

/// Arguments of `read_file`.
#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct ReadFileArgs {
    /// Path in the sandbox. A relative path starts at the user's home.
    path: String,
    /// First line to read, counted from 1. Default: 1.
    #[serde(default)]
    #[schemars(range(min = 1))]
    first_line: Option<u64>,
    /// The number of lines to read. Default: as many as fit.
    #[serde(default)]
    #[schemars(range(min = 1))]
    lines: Option<u64>,
    #[serde(flatten)]
    place: Where,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct FileAnswer {
    /// The sandbox that has it.
    sandbox: String,
    /// The path that was asked for.
    path: String,
    /// Size of the whole file in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    size: Option<u64>,
    /// The lines. Missing if it is a picture.
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<String>,
    /// The number of the first line.
    first_line: u64,
    /// The number of lines that were read.
    lines: u64,
    /// Whether there is more after these lines.
    truncated: bool,
}

impl McpTool for ReadFileArgs {
    const NAME: &'static str = "read_file";
    const TITLE: &'static str = "Read a file";
    const DESCRIPTION: &'static str = "Reads a text file or a picture (PNG, JPEG, GIF, WebP) in a sandbox.";
    const EFFECT: Effect = Effect::Reads;
    type Answer = FileAnswer;

    async fn run(self, call: Call) -> Result<Answered<FileAnswer>, ToolError> {
        let sandbox = call.sandbox(self.place).await?;
        let (first, most) = (self.first_line.unwrap_or(1).max(1), self.lines.unwrap_or(u64::MAX));
        let read = match sandbox.guest().read_file(&self.path).await {
            Ok(download) => read(download, first, most, call.max_output()).await,
            Err(error) => Err(error),
        };
        let (size, content) = match read {
            Ok(read) => read,
            Err(error) => return Err(call.sandboxes.explain(error, sandbox.id()).await),
        };
        let answer = |text, lines, truncated| FileAnswer {
            sandbox: sandbox.id().to_string(),
            path: self.path.clone(),
            size,
            text,
            first_line: first,
            lines,
            truncated,
        };
        match content {
            Content::Text { text, lines, truncated } => {
                let mut shown = visible(&text);
                if truncated {
                    let next = first + lines;
                    shown.push_str(&format!("\n[There is more; continue with first_line {next}.]"));
                }
                Ok(Answered::text(shown, answer(Some(text), lines, truncated)))
            }
            Content::Image { data, kind } => {
                Ok(Answered { content: vec![ContentBlock::image(data, kind)], structured: answer(None, 0, false) })
            }
            Content::Binary => Err(ToolError::new(format!("{} is no text", self.path))
                .hint("use run_command or run_code to look into it, or download to copy it")),
            Content::LargeImage => Err(ToolError::new(format!("the picture {} is too large", self.path))
                .hint(format!("make it smaller than {MAX_IMAGE} bytes in the sandbox first"))),
            Content::TooFar => Err(ToolError::new(format!("line {first} is too far into {}", self.path))
                .hint("use run_command with sed or tail")),
        }
    }
}

enum Content {
    Text { text: String, lines: u64, truncated: bool },
    Image { data: String, kind: &'static str },
    LargeImage,
    Binary,
    TooFar,
}

async fn read(mut download: Download, first: u64, most: u64, max: usize) -> Result<(Option<u64>, Content), GuestError> {
    let size = download.size();
    let mut lines = Lines { before: first - 1, most, max, kept: Vec::new(), count: 0, has_more: false };
    let mut image: Option<(&'static str, Vec<u8>)> = None;
    let mut scanned = 0;
    while let Some(piece) = download.next().await? {
        if scanned == 0
            && let Some(kind) = picture_kind(&piece)
        {
            image = Some((kind, Vec::new()));
        }
        scanned += piece.len() as u64;
        match &mut image {
            Some((_, bytes)) if bytes.len() + piece.len() <= MAX_IMAGE => bytes.extend_from_slice(&piece),
            Some(_) => return Ok((size, Content::LargeImage)),
            None if lines.push(&piece) => break,
            None if scanned > MAX_SCANNED => return Ok((size, Content::TooFar)),
            None => {}
        }
    }
    Ok((
        size,
        image.map_or_else(|| lines.content(), |(kind, bytes)| Content::Image { data: STANDARD.encode(bytes), kind }),
    ))
}

fn picture_kind(bytes: &[u8]) -> Option<&'static str> {
    match bytes {
        [0x89, b'P', b'N', b'G', ..] => Some("image/png"),
        [0xff, 0xd8, 0xff, ..] => Some("image/jpeg"),
        [b'G', b'I', b'F', b'8', ..] => Some("image/gif"),
        [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => Some("image/webp"),
        _ => None,
    }
}

/// The wanted lines of a file that comes in pieces.
struct Lines {
    /// How many lines are still to be passed over.
    before: u64,
    most: u64,
    max: usize,
    kept: Vec<u8>,
    /// Whole lines in `kept`.
    count: u64,
    has_more: bool,
}

impl Lines {
    /// True when no more is needed.
    fn push(&mut self, mut piece: &[u8]) -> bool {
        while self.before > 0 {
            let Some(end) = piece.iter().position(|byte| *byte == b'\n') else { return false };
            piece = &piece[end + 1..];
            self.before -= 1;
        }
        for line in piece.split_inclusive(|byte| *byte == b'\n') {
            if self.count >= self.most || self.kept.len() >= self.max {
                self.has_more = true;
                return true;
            }
            self.kept.extend_from_slice(line);
            self.count += u64::from(line.ends_with(b"\n"));
        }
        false
    }

    fn content(mut self) -> Content {
        if self.kept.contains(&0) {
            return Content::Binary;
        }
        if self.kept.len() > self.max {
            // A very long line, or one that begins before the limit and ends after it.
            let end = self.kept[..self.max].iter().rposition(|byte| *byte == b'\n').map_or(self.max, |at| at + 1);
            self.kept.truncate(end);
            self.count = self.kept.iter().filter(|byte| **byte == b'\n').count() as u64;
            self.has_more = true;
        }
        let lines = self.count + u64::from(!self.kept.is_empty() && !self.kept.ends_with(b"\n"));
        match String::from_utf8(self.kept) {
            Ok(text) => Content::Text { text, lines, truncated: self.has_more },
            // Half a character at the end of a cut.
            Err(error) if self.has_more && error.utf8_error().error_len().is_none() => {
                let text = String::from_utf8_lossy(error.as_bytes()).into_owned();
                Content::Text { text, lines, truncated: true }
            }
            Err(_) => Content::Binary,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(pieces: &[&str], first: u64, most: u64, max: usize) -> (String, u64, bool) {
        let mut lines = Lines { before: first - 1, most, max, kept: Vec::new(), count: 0, has_more: false };
        for piece in pieces {
            if lines.push(piece.as_bytes()) {
                break;
            }
        }
        match lines.content() {
            Content::Text { text, lines, truncated } => (text, lines, truncated),
            _ => panic!("no text"),
        }
    }

    #[test]
    fn lines_are_found_wherever_pieces_are_cut() {
        let of = |text: &str, count, more| (text.to_owned(), count, more);
        assert_eq!(lines(&["a\nb", "b\nc"], 1, 9, 99), of("a\nbb\nc", 3, false));
        assert_eq!(lines(&["a\nb", "b\nc"], 2, 1, 99), of("bb\n", 1, true));
        assert_eq!(lines(&["a\nb", "b\nc"], 3, 9, 99), of("c", 1, false));
        assert_eq!(lines(&["a\n"], 5, 9, 99), of("", 0, false));
        assert_eq!(lines(&["aa\nbb\ncc\n"], 1, 9, 4), of("aa\n", 1, true));
        assert_eq!(lines(&["aaaaaaaa"], 1, 9, 4), of("aaaa", 1, true));
    }

    #[test]
    fn what_is_no_text_is_not_shown_as_text() {
        let of = |bytes: &[u8]| {
            let mut lines = Lines { before: 0, most: 9, max: 99, kept: Vec::new(), count: 0, has_more: false };
            lines.push(bytes);
            lines.content()
        };
        assert!(matches!(of(b"a\0b"), Content::Binary) && matches!(of(b"\xff\xfe"), Content::Binary));
        assert_eq!(picture_kind(b"\x89PNG\r\n"), Some("image/png"));
    }
}
