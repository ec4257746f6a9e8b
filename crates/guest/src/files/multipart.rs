//! Parses `multipart/form-data` as it arrives, one part after the other, with a bounded buffer.

use std::io::{self, Read};
use std::ops::Range;

use memchr::memmem;

const READ: usize = 256 << 10;
const MAX_HEADERS: usize = 16 << 10;

/// Why a form cannot be parsed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum MultipartError {
    #[error("error reading form: {0}")]
    Read(#[from] io::Error),
    #[error("error reading form: it ends in the middle of a part")]
    Truncated,
    #[error("error reading form: a part has malformed headers")]
    Headers,
}

/// The boundary in a content type.
pub(crate) fn boundary(content_type: &str) -> Option<String> {
    let found = parameter(content_type, "boundary")?;
    (!found.is_empty() && found.len() <= 200).then_some(found)
}

/// The headers of a part.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) name: Option<String>,
    pub(crate) file_name: Option<String>,
}

/// The parts of a form.
pub(crate) struct Parts<R> {
    reader: R,
    buffer: Vec<u8>,
    /// The unread part of the buffer.
    rest: Range<usize>,
    finder: memmem::Finder<'static>,
    /// Whether the current part has more data.
    in_part: bool,
}

impl<R: Read> Parts<R> {
    pub(crate) fn new(reader: R, boundary: &str) -> Self {
        let delimiter = format!("\r\n--{boundary}");
        // The first boundary has no line break before it. Adding one makes all boundaries alike.
        let finder = memmem::Finder::new(delimiter.as_bytes()).into_owned();
        Self { reader, buffer: b"\r\n".to_vec(), rest: 0..2, finder, in_part: true }
    }

    /// Skips the rest of the current part and goes to the next one. `None` after the last part.
    pub(crate) fn next_part(&mut self) -> Result<Option<Part>, MultipartError> {
        while self.data()?.is_some() {}
        while self.rest.len() < 2 {
            self.fill()?;
        }
        if self.unread().starts_with(b"--") {
            return Ok(None);
        }
        let headers = self.headers()?;
        self.in_part = true;
        Ok(Some(parse_part(&headers)))
    }

    /// The next bytes of the current part. `None` at its end.
    pub(crate) fn data(&mut self) -> Result<Option<&[u8]>, MultipartError> {
        while self.in_part {
            if let Some(at) = self.finder.find(self.unread()) {
                let piece = self.rest.start..self.rest.start + at;
                if piece.is_empty() {
                    self.in_part = false;
                    self.rest.start += self.finder.needle().len();
                    return Ok(None);
                }
                self.rest.start = piece.end;
                return Ok(Some(&self.buffer[piece]));
            }
            // The last bytes may be the start of a delimiter.
            let safe = self.rest.len().saturating_sub(self.finder.needle().len() - 1);
            if safe > 0 {
                let piece = self.rest.start..self.rest.start + safe;
                self.rest.start = piece.end;
                return Ok(Some(&self.buffer[piece]));
            }
            self.fill()?;
        }
        Ok(None)
    }

    fn headers(&mut self) -> Result<String, MultipartError> {
        loop {
            if let Some(at) = memmem::find(self.unread(), b"\r\n\r\n") {
                let text = String::from_utf8_lossy(&self.unread()[..at]).into_owned();
                self.rest.start += at + 4;
                return Ok(text);
            }
            if self.rest.len() > MAX_HEADERS {
                return Err(MultipartError::Headers);
            }
            self.fill()?;
        }
    }

    fn unread(&self) -> &[u8] {
        &self.buffer[self.rest.clone()]
    }

    fn fill(&mut self) -> Result<(), MultipartError> {
        self.buffer.drain(..self.rest.start);
        self.rest = 0..self.rest.len();
        self.buffer.resize(self.rest.end + READ, 0);
        let read = loop {
            match self.reader.read(&mut self.buffer[self.rest.end..]) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                other => break other?,
            }
        };
        self.rest.end += read;
        self.buffer.truncate(self.rest.end);
        if read == 0 { Err(MultipartError::Truncated) } else { Ok(()) }
    }
}

fn parse_part(headers: &str) -> Part {
    let disposition = headers.split("\r\n").find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.trim().eq_ignore_ascii_case("content-disposition").then_some(value)
    });
    let get = |name| disposition.and_then(|value| parameter(value, name));
    Part { name: get("name"), file_name: get("filename*").and_then(|text| extended(&text)).or_else(|| get("filename")) }
}

/// The value of `name=value` or `name="value"` after the first semicolon.
fn parameter(header: &str, wanted: &str) -> Option<String> {
    let mut rest = header.split_once(';')?.1;
    loop {
        let (name, after) = rest.split_once('=')?;
        let (value, next) = match after.trim_start().strip_prefix('"') {
            Some(quoted) => unquote(quoted)?,
            None => {
                let (value, next) = after.split_once(';').unwrap_or((after, ""));
                (value.trim().to_owned(), next)
            }
        };
        if name.trim_matches([' ', '\t', ';']).eq_ignore_ascii_case(wanted) {
            return Some(value);
        }
        rest = next;
    }
}

fn unquote(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut chars = text.char_indices();
    while let Some((at, char)) = chars.next() {
        match char {
            '"' => return Some((value, &text[at + 1..])),
            // Only quotes and backslashes are escaped: a file name may contain a backslash of its own.
            '\\' => match chars.clone().next() {
                Some((_, escaped @ ('"' | '\\'))) => {
                    chars.next();
                    value.push(escaped);
                }
                _ => value.push('\\'),
            },
            other => value.push(other),
        }
    }
    None
}

/// `utf-8''%41` of RFC 5987.
fn extended(text: &str) -> Option<String> {
    let (charset, rest) = text.split_once('\'')?;
    let encoded = rest.split_once('\'')?.1;
    if !charset.eq_ignore_ascii_case("utf-8") {
        return None;
    }
    // The rules are those of a query, except that a plus sign means itself.
    let escaped = format!("x={}", encoded.replace('+', "%2B"));
    crate::http::Query::parse(Some(&escaped)).get("x").map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Returns its bytes a few at a time, to cut delimiters in every place.
    struct Dribble<'a>(&'a [u8], usize);

    impl Read for Dribble<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let n = self.1.min(self.0.len()).min(buffer.len());
            buffer[..n].copy_from_slice(&self.0[..n]);
            self.0 = &self.0[n..];
            Ok(n)
        }
    }

    fn read_form(form: &[u8], step: usize) -> Result<Vec<(Part, Vec<u8>)>, MultipartError> {
        let mut parts = Parts::new(Dribble(form, step), "b");
        let mut all = Vec::new();
        while let Some(part) = parts.next_part()? {
            let mut data = Vec::new();
            while let Some(piece) = parts.data()? {
                data.extend(piece);
            }
            all.push((part, data));
        }
        Ok(all)
    }

    fn form(contents: &[Vec<u8>]) -> Vec<u8> {
        let mut form = Vec::new();
        for (n, content) in contents.iter().enumerate() {
            let head =
                format!("--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"/d/{n}\"\r\nX: y\r\n\r\n");
            form.extend(head.as_bytes());
            form.extend(content);
            form.extend(b"\r\n");
        }
        form.extend(b"--b--\r\n");
        form
    }

    #[test]
    fn truncated_forms_are_refused() {
        let whole = form(&[b"data".to_vec()]);
        for end in 0..whole.len() - 4 {
            assert!(read_form(&whole[..end], 9).is_err(), "{end}");
        }
    }

    #[test]
    fn names_are_unquoted() {
        let part = parse_part("content-disposition: form-data; name=\"file\"; filename=\"a \\\"b\\\" \\c;d=e\"");
        assert_eq!(part, Part { name: Some("file".into()), file_name: Some("a \"b\" \\c;d=e".into()) });
        let part = parse_part("Content-Disposition: form-data; name=file; filename=x; filename*=utf-8''%C3%A9+");
        assert_eq!(part, Part { name: Some("file".into()), file_name: Some("é+".into()) });
        assert_eq!(parse_part("Content-Disposition: form-data; name=\"open").name, None);
    }

    #[test]
    fn the_boundary_comes_from_the_content_type() {
        assert_eq!(boundary("multipart/form-data; boundary=\"x y\""), Some("x y".into()));
        assert_eq!(boundary("multipart/form-data; charset=a; boundary=xy"), Some("xy".into()));
        assert_eq!(boundary("multipart/form-data"), None);
        assert_eq!(boundary("multipart/form-data; boundary="), None);
    }

    proptest! {
        #[test]
        fn contents_survive_however_they_are_cut(
            contents in proptest::collection::vec(proptest::collection::vec(prop_oneof![Just(b'\r'), Just(b'\n'), Just(b'-'), Just(b'a')], 0..40), 0..4),
            step in 1usize..20,
        ) {
            // Contents that include the boundary are the sender's mistake.
            prop_assume!(contents.iter().all(|c| memmem::find(c, b"\r\n--b").is_none()));
            let read = read_form(&form(&contents), step).unwrap();
            prop_assert_eq!(read.len(), contents.len());
            for (n, (part, data)) in read.into_iter().enumerate() {
                prop_assert_eq!(part.file_name, Some(format!("/d/{n}")));
                prop_assert_eq!(&data, &contents[n]);
            }
        }

        #[test]
        fn any_bytes_are_a_form_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..300), step in 1usize..50) {
            let _ = read_form(&bytes, step);
        }
    }
}
