//! Fuzzed: multipart forms, and the headers of downloads.

use std::io::{self, Read};
use std::time::{Duration, UNIX_EPOCH};

use http::{HeaderMap, HeaderValue, header};

use super::multipart::{MultipartError, Part, Parts, boundary};
use super::range::{RangeOutcome, evaluate, http_date, is_partial_or_conditional};
use super::{encoding, signature};

/// The first byte is the size of the pieces in which the form arrives, the first line its content type, the rest the form.
pub fn multipart(data: &[u8]) {
    let Some((step, data)) = data.split_first() else { return };
    let line = memchr::memchr(b'\n', data).unwrap_or(data.len());
    let content_type = String::from_utf8_lossy(&data[..line]);
    let form = data.get(line + 1..).unwrap_or_default();
    let boundary = boundary(&content_type).unwrap_or_else(|| "b".to_owned());
    let cut = read_form(Pieces { rest: form, step: usize::from(*step) + 1 }, &boundary);
    let whole = read_form(form, &boundary);
    assert_eq!(cut.ok(), whole.ok(), "a form must not depend on the pieces in which it arrives");
}

fn read_form(form: impl Read, boundary: &str) -> Result<Vec<(Part, Vec<u8>)>, MultipartError> {
    let mut parts = Parts::new(form, boundary);
    let mut all = Vec::new();
    while let Some(part) = parts.next_part()? {
        let mut content = Vec::new();
        while let Some(piece) = parts.data()? {
            content.extend_from_slice(piece);
        }
        all.push((part, content));
    }
    Ok(all)
}

struct Pieces<'a> {
    rest: &'a [u8],
    step: usize,
}

impl Read for Pieces<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let length = self.step.min(self.rest.len()).min(buffer.len());
        let (now, rest) = self.rest.split_at(length);
        buffer[..length].copy_from_slice(now);
        self.rest = rest;
        Ok(length)
    }
}

/// Eight bytes are the file's length, four its modification time; then comes one line for each header that matters.
pub fn file_headers(data: &[u8]) {
    let Some((length, data)) = data.split_first_chunk::<8>() else { return };
    let Some((seconds, data)) = data.split_first_chunk::<4>() else { return };
    let (length, seconds) = (u64::from_le_bytes(*length), u32::from_le_bytes(*seconds));
    let modified = UNIX_EPOCH + Duration::from_secs(seconds.into());
    let names = [
        header::RANGE,
        header::IF_RANGE,
        header::IF_MATCH,
        header::IF_NONE_MATCH,
        header::IF_MODIFIED_SINCE,
        header::IF_UNMODIFIED_SINCE,
        header::ACCEPT_ENCODING,
        header::CONTENT_ENCODING,
    ];
    let lines = data.split(|byte| *byte == b'\n').map(HeaderValue::from_bytes);
    let headers: HeaderMap =
        names.into_iter().zip(lines).filter_map(|(name, value)| Some((name, value.ok()?))).collect();
    if let RangeOutcome::Part(first, end) = evaluate(&headers, length, modified) {
        assert!(first < end && end <= length, "{first}..{end} of {length}");
        assert!(is_partial_or_conditional(&headers));
    }
    let _ = encoding::accepted_encoding(&headers);
    let _ = encoding::content_encoding(&headers);
    assert_eq!(super::range::parse_date(&http_date(modified)), Some(seconds.into()));
    check_signature(&String::from_utf8_lossy(data));
}

/// No text that is made without the token is a valid signature.
fn check_signature(text: &str) {
    let mut fields = text.split('\n');
    let mut field = || fields.next().unwrap_or_default();
    let (path, user, expiration, shown) = (field(), field(), field(), field());
    let signed = signature::Signed { path, operation: signature::Operation::Read, user, expiration: Some(expiration) };
    assert!(signed.check("a token that nobody knows", Some(shown)).is_err(), "{text:?}");
}
