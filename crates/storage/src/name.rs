//! Converts file names into parts of object keys, and back.
//!
//! A key is text and is sent in XML, but a file name may have any bytes except `/` and NUL. Nearly every name is its
//! own key part, so that other tools see the same names. Only bytes that a key cannot contain are written as `%XX`:
//! control characters, and bytes that are not UTF-8. If a name contains a `%XX` that would be read as such an escape,
//! its `%` is written as `%25`.

/// The maximum length of a name, as everywhere on Linux.
pub(crate) const NAME_MAX: usize = 255;

/// The maximum length of a key in S3.
pub(crate) const KEY_MAX: usize = 1024;

/// The part of a key for this name.
pub(crate) fn encode(name: &[u8]) -> String {
    let mut out = String::with_capacity(name.len());
    let mut rest = name;
    while !rest.is_empty() {
        let (text, bad) = match std::str::from_utf8(rest) {
            Ok(text) => (text, 0),
            Err(error) => {
                let valid = std::str::from_utf8(&rest[..error.valid_up_to()]).expect("this part was found to be valid");
                (valid, error.error_len().unwrap_or(rest.len() - valid.len()))
            }
        };
        encode_text(text, &mut out);
        let bad_end = text.len() + bad;
        for byte in &rest[text.len()..bad_end] {
            push_escape(*byte, &mut out);
        }
        rest = &rest[bad_end..];
    }
    out
}

/// The name for a part of a key, or `None` if no name is written this way.
pub(crate) fn decode(part: &str) -> Option<Vec<u8>> {
    if part.is_empty() || part == "." || part == ".." {
        return None;
    }
    let bytes = part.as_bytes();
    let mut name = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        match escape_at(bytes, at) {
            Some(byte) => {
                name.push(byte);
                at += 3;
            }
            None => {
                name.push(bytes[at]);
                at += 1;
            }
        }
    }
    // Reject foreign keys such as `%C3%A9`, which would decode to a name that we encode differently.
    (name.len() <= NAME_MAX && !name.contains(&0) && !name.contains(&b'/') && encode(&name) == part).then_some(name)
}

fn encode_text(text: &str, out: &mut String) {
    for (at, char) in text.char_indices() {
        let looks_escaped = char == '%' && escape_at(text.as_bytes(), at).is_some();
        if looks_escaped || char.is_ascii_control() {
            push_escape(char as u8, out);
        } else if matches!(char, '\u{fffe}' | '\u{ffff}') {
            // XML cannot represent these two.
            char.encode_utf8(&mut [0; 4]).bytes().for_each(|byte| push_escape(byte, out));
        } else {
            out.push(char);
        }
    }
}

/// The byte of an escape at this position, if we would write it as an escape.
fn escape_at(bytes: &[u8], at: usize) -> Option<u8> {
    let [b'%', high, low] = *bytes.get(at..at + 3)? else { return None };
    let byte = hex(high)? << 4 | hex(low)?;
    (byte.is_ascii_control() || byte >= 0x80 || byte == b'%').then_some(byte)
}

fn hex(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'A'..=b'F' => Some(digit - b'A' + 10),
        _ => None,
    }
}

fn push_escape(byte: u8, out: &mut String) {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    out.push('%');
    out.push(DIGITS[usize::from(byte >> 4)] as char);
    out.push(DIGITS[usize::from(byte & 15)] as char);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn plain_names_are_their_own_keys() {
        for name in ["a.txt", "100%", "a%20b", "%41", "with space+plus", "é漢字", "%zz", "~#?&", "trailing%"] {
            assert_eq!(encode(name.as_bytes()), name);
            assert_eq!(decode(name).as_deref(), Some(name.as_bytes()));
        }
    }

    #[test]
    fn odd_bytes_are_escaped() {
        assert_eq!(encode(b"a\nb"), "a%0Ab");
        assert_eq!(encode(b"\xff\xfe"), "%FF%FE");
        assert_eq!(encode(b"a%0Ab"), "a%250Ab");
        assert_eq!(encode("a\u{ffff}".as_bytes()), "a%EF%BF%BF");
    }

    #[test]
    fn keys_that_no_name_is_written_as_are_not_names() {
        for part in ["", ".", "..", "%C3%A9", "%00"] {
            assert_eq!(decode(part), None, "{part}");
        }
    }

    proptest! {
        #[test]
        fn every_name_comes_back(name in proptest::collection::vec(1_u8.., 1..40)) {
            prop_assume!(!name.contains(&b'/') && name != b"." && name != b"..");
            prop_assert_eq!(decode(&encode(&name)), Some(name));
        }

        #[test]
        fn no_two_names_share_a_key(a in "[%0A-Fx]{1,8}", b in "[%0A-Fx]{1,8}") {
            prop_assert_eq!(a == b, encode(a.as_bytes()) == encode(b.as_bytes()));
        }
    }
}
