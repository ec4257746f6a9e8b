//! Sees two lengths in one HTTP/1 request: `Content-Length` together with `Transfer-Encoding`. Hyper believes the latter
//! and hides the former; a proxy in front may believe the other one, and then the two disagree about where the next
//! request begins. So such a request is refused (RFC 9112, 6.1), which takes a look at the bytes themselves.
//!
//! This follows a connection from request to request. What it cannot follow, hyper refuses by itself.

/// As much of a line as tells a header's name and a length. One that is longer is no plain length: what follows the cut
/// would tell another one.
const LINE: usize = 64;

/// Where in its requests a connection is.
#[derive(Debug)]
pub(super) struct Framing {
    at: At,
    line: Vec<u8>,
    /// There was more of the line.
    is_cut: bool,
    head: Head,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    /// Before the first line of a request, or in it.
    Start,
    Headers,
    Body(u64),
    ChunkSize,
    /// With the end of its line.
    Chunk(u64),
    Trailers,
    /// Not to be followed any more.
    Lost,
}

/// What the head that is being read says of its body.
#[derive(Clone, Copy, Debug, Default)]
struct Head {
    length: Option<u64>,
    is_chunked: bool,
    /// Its length cannot be told.
    is_unclear: bool,
}

impl Default for Framing {
    fn default() -> Self {
        Self { at: At::Start, line: Vec::new(), is_cut: false, head: Head::default() }
    }
}

impl Framing {
    /// Follows what came. True when a request in it has two lengths, or one that cannot be told.
    pub(super) fn sees_two_lengths(&mut self, mut bytes: &[u8]) -> bool {
        while let Some(&byte) = bytes.first() {
            match self.at {
                At::Lost => return false,
                At::Body(left) | At::Chunk(left) => {
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
            (At::Body(_), 0) => At::Start,
            (At::Chunk(_), 0) => At::ChunkSize,
            (At::Body(_), left) => At::Body(left),
            (_, left) => At::Chunk(left),
        };
    }

    fn end_of_line(&mut self) -> bool {
        let line = std::mem::take(&mut self.line);
        let is_cut = std::mem::take(&mut self.is_cut);
        let line = line.trim_ascii_end();
        self.at = match self.at {
            At::Start if line.is_empty() => At::Start,
            At::Start if line.starts_with(b"PRI * HTTP/2") => At::Lost,
            At::Start => {
                self.head = Head::default();
                At::Headers
            }
            At::Headers if line.is_empty() => return self.end_of_head(),
            At::Headers => {
                self.header(line, is_cut);
                At::Headers
            }
            // What follows a size says nothing about it.
            At::ChunkSize if is_cut && !line.contains(&b';') => {
                self.at = At::Lost;
                return true;
            }
            At::ChunkSize => chunk_size(line),
            At::Trailers if line.is_empty() => At::Start,
            other => other,
        };
        false
    }

    fn header(&mut self, line: &[u8], is_cut: bool) {
        let Some(colon) = line.iter().position(|byte| *byte == b':') else { return };
        let (name, value) = (line[..colon].trim_ascii(), line[colon + 1..].trim_ascii());
        if name.eq_ignore_ascii_case(b"content-length") {
            self.head.is_unclear |= is_cut;
            // A length that is none is hyper's to refuse.
            self.head.length = Some(std::str::from_utf8(value).ok().and_then(|text| text.parse().ok()).unwrap_or(0));
        } else if name.eq_ignore_ascii_case(b"transfer-encoding") {
            self.head.is_chunked = true;
        }
    }

    fn end_of_head(&mut self) -> bool {
        let Head { length, is_chunked, is_unclear } = self.head;
        self.at = match (length, is_chunked) {
            _ if is_unclear => At::Lost,
            (Some(_), true) => At::Lost,
            (_, true) => At::ChunkSize,
            (Some(length), false) if length > 0 => At::Body(length),
            _ => At::Start,
        };
        self.at == At::Lost
    }
}

fn chunk_size(line: &[u8]) -> At {
    let digits = line.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii();
    let size = std::str::from_utf8(digits).ok().and_then(|text| u64::from_str_radix(text, 16).ok());
    match size {
        Some(0) => At::Trailers,
        Some(size) => size.checked_add(2).map_or(At::Lost, At::Chunk),
        None => At::Lost,
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

    /// Hyper reads these as what they say at their end. Who takes the body for the next request loses the way in this one.
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
        /// However the bytes are cut, and whatever they are.
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
