//! Detects `Content-Length` together with `Transfer-Encoding` in one HTTP/1 request. Hyper uses the latter and hides
//! the former. A proxy in front may use the other one, and then the two disagree about where the next request begins
//! (request smuggling). Such a request is refused (RFC 9112, 6.1), and detecting it requires parsing the raw bytes.
//!
//! The parser follows a connection from request to request. Hyper itself refuses what it cannot parse.

/// The part of a line that is kept, enough for a header name and a length. A longer Content-Length line is ambiguous,
/// because its value would be cut.
const LINE: usize = 64;

/// The position of a connection in its requests.
#[derive(Debug)]
pub struct Framing {
    at: Position,
    line: Vec<u8>,
    /// Whether the line was longer.
    is_cut: bool,
    head: Head,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Position {
    /// Before or in the first line of a request.
    Start,
    Headers,
    Body(u64),
    ChunkSize,
    /// Including the line end.
    Chunk(u64),
    Trailers,
    /// Not tracked any more.
    Lost,
}

/// What the current head says about its body.
#[derive(Clone, Copy, Debug, Default)]
struct Head {
    length: Option<u64>,
    is_chunked: bool,
    /// Whether the length is ambiguous.
    is_unclear: bool,
}

impl Default for Framing {
    fn default() -> Self {
        Self { at: Position::Start, line: Vec::new(), is_cut: false, head: Head::default() }
    }
}

impl Framing {
    /// Parses received bytes. Returns true if a request has two lengths, or an ambiguous one.
    pub fn sees_two_lengths(&mut self, mut bytes: &[u8]) -> bool {
        while let Some(&byte) = bytes.first() {
            match self.at {
                Position::Lost => return false,
                Position::Body(left) | Position::Chunk(left) => {
                    let here = usize::try_from(left).unwrap_or(usize::MAX).min(bytes.len());
                    bytes = &bytes[here..];
                    self.skipped(left - here as u64);
                }
                _ => {
                    bytes = &bytes[1..];
                    if byte == b'\n' && self.end_of_line() {
                        return true;
                    }
                    if byte != b'\n' {
                        self.push(byte);
                    }
                }
            }
        }
        false
    }

    fn push(&mut self, byte: u8) {
        if self.line.len() < LINE { self.line.push(byte) } else { self.is_cut = true }
    }

    fn skipped(&mut self, left: u64) {
        self.at = match (self.at, left) {
            (Position::Body(_), 0) => Position::Start,
            (Position::Chunk(_), 0) => Position::ChunkSize,
            (Position::Body(_), left) => Position::Body(left),
            (_, left) => Position::Chunk(left),
        };
    }

    fn end_of_line(&mut self) -> bool {
        let line = std::mem::take(&mut self.line);
        let is_cut = std::mem::take(&mut self.is_cut);
        let line = line.trim_ascii_end();
        self.at = match self.at {
            Position::Start if line.is_empty() => Position::Start,
            Position::Start if line.starts_with(b"PRI * HTTP/2") => Position::Lost,
            Position::Start => {
                self.head = Head::default();
                Position::Headers
            }
            Position::Headers if line.is_empty() => return self.end_of_head(),
            Position::Headers => {
                self.header(line, is_cut);
                Position::Headers
            }
            // Chunk extensions do not affect the size.
            Position::ChunkSize if is_cut && !line.contains(&b';') => {
                self.at = Position::Lost;
                return true;
            }
            Position::ChunkSize => chunk_size(line),
            Position::Trailers if line.is_empty() => Position::Start,
            other => other,
        };
        false
    }

    fn header(&mut self, line: &[u8], is_cut: bool) {
        let Some(colon) = line.iter().position(|byte| *byte == b':') else { return };
        let (name, value) = (line[..colon].trim_ascii(), line[colon + 1..].trim_ascii());
        if name.eq_ignore_ascii_case(b"content-length") {
            self.head.is_unclear |= is_cut;
            // Hyper refuses invalid lengths.
            self.head.length = Some(std::str::from_utf8(value).ok().and_then(|text| text.parse().ok()).unwrap_or(0));
        } else if name.eq_ignore_ascii_case(b"transfer-encoding") {
            self.head.is_chunked = true;
        }
    }

    fn end_of_head(&mut self) -> bool {
        let Head { length, is_chunked, is_unclear } = self.head;
        self.at = match (length, is_chunked) {
            _ if is_unclear => Position::Lost,
            (Some(_), true) => Position::Lost,
            (_, true) => Position::ChunkSize,
            (Some(length), false) if length > 0 => Position::Body(length),
            _ => Position::Start,
        };
        self.at == Position::Lost
    }
}

fn chunk_size(line: &[u8]) -> Position {
    let digits = line.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii();
    let size = std::str::from_utf8(digits).ok().and_then(|text| u64::from_str_radix(text, 16).ok());
    match size {
        Some(0) => Position::Trailers,
        Some(size) => size.checked_add(2).map_or(Position::Lost, Position::Chunk),
        None => Position::Lost,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SMUGGLED: &str =
        "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n";

    #[test]
    fn two_lengths_are_seen_in_either_order_and_case() {
        for text in [SMUGGLED, "\r\nGET / HTTP/1.1\ntransfer-encoding:\tchunked\nCONTENT-LENGTH:0\n\n"] {
            assert!(Framing::default().sees_two_lengths(text.as_bytes()), "{text:?}");
        }
    }

    #[test]
    fn a_body_is_not_taken_for_a_head() {
        let inner = SMUGGLED.len();
        let plain = format!("POST / HTTP/1.1\r\nContent-Length: {inner}\r\n\r\n{SMUGGLED}GET / HTTP/1.1\r\n\r\n");
        assert!(!Framing::default().sees_two_lengths(plain.as_bytes()));
        let chunked = format!(
            "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n{inner:x};a=b\r\n{SMUGGLED}\r\n0\r\nX: y\r\n\r\n"
        );
        assert!(!Framing::default().sees_two_lengths(chunked.as_bytes()));
        for before in [plain, chunked] {
            assert!(Framing::default().sees_two_lengths(format!("{before}{SMUGGLED}").as_bytes()), "{before}");
        }
    }

    /// Hyper parses these by their full value. A parser that treats the body as the next request loses track.
    #[test]
    fn a_length_too_long_to_be_told_is_not_guessed() {
        for length in
            [format!("{}15", "0".repeat(64)), format!("{}15", " ".repeat(64)), format!("15{}", " ".repeat(64))]
        {
            let text = format!("POST / HTTP/1.1\r\nContent-Length: {length}\r\n\r\nPRI * HTTP/2.0\n{SMUGGLED}");
            assert!(Framing::default().sees_two_lengths(text.as_bytes()), "{length:?}");
        }
        let chunk = |size: &str| {
            let head = "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n";
            Framing::default().sees_two_lengths(format!("{head}{size}\r\n01234\r\n0\r\n\r\n").as_bytes())
        };
        assert!(chunk(&format!("{}5", "0".repeat(64))));
        assert!(!chunk(&format!("5;{}", "x".repeat(100))) && !chunk("005"));
        let long =
            format!("GET /{} HTTP/1.1\r\nX: {}\r\nContent-Length: 2\r\n\r\n{{}}", "a".repeat(99), "b".repeat(99));
        assert!(!Framing::default().sees_two_lengths(long.as_bytes()), "other lines may be long");
    }

    proptest! {
        /// However the bytes are split, and whatever they are.
        #[test]
        fn pieces_say_the_same_as_the_whole(cuts in proptest::collection::vec(0..90_usize, 0..9), noise: Vec<u8>) {
            let mut framing = Framing::default();
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(SMUGGLED.len())).collect();
            cuts.extend([0, SMUGGLED.len()]);
            cuts.sort_unstable();
            let pieces = cuts.windows(2).map(|pair| &SMUGGLED.as_bytes()[pair[0]..pair[1]]);
            prop_assert!(pieces.map(|piece| framing.sees_two_lengths(piece)).filter(|seen| *seen).count() == 1);
            Framing::default().sees_two_lengths(&noise);
        }
    }
}
