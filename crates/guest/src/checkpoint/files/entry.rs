//! The format of the files' stream.
//!
//! ```text
//! magic, then entries, then one of the kind `End`
//! entry:  kind, place, mode, uid, gid, mtime (seconds, nanoseconds), size, lengths of: path, target, attributes;
//!         then these three
//! file:   its entry, then its data: (offset, length, bytes) until a length is 0. What is left out is zeros
//! ```
//!
//! Numbers are little-endian. It is not tar because files in memory are often large and mostly empty, which tar's format and
//! libraries handle badly, and because this is smaller.

use bytes::{Buf, BufMut};

pub(super) const MAGIC: &[u8; 16] = b"isopod files v1\n";
/// The length of an entry without path, target and attributes.
pub(super) const HEAD_LENGTH: usize = 42;
/// Offset and length of data.
pub(super) const EXTENT_LENGTH: usize = 12;
/// The longest path inside a place. The kernel takes no longer ones.
pub(super) const MAX_PATH: usize = 4095;
/// The longest attributes of one file.
pub(super) const MAX_ATTRIBUTES: usize = 256 << 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    End = 0,
    /// Comes before its files to make it, and after them once more for its times.
    Directory = 1,
    File = 2,
    Symlink = 3,
    /// Another name of a file that came before, which is the target.
    Link = 4,
    Fifo = 5,
}

impl Kind {
    fn parse(number: u8) -> Option<Self> {
        let all = [Self::End, Self::Directory, Self::File, Self::Symlink, Self::Link, Self::Fifo];
        all.into_iter().find(|kind| *kind as u8 == number)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) kind: Kind,
    pub(super) place: u8,
    pub(super) mode: u32,
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) seconds: i64,
    pub(super) nanoseconds: u32,
    pub(super) size: u64,
    /// The lengths are known from parsing. `encode` writes those of what it encodes.
    pub(super) path_length: u16,
    pub(super) target_length: u16,
    pub(super) attributes_length: u32,
}

/// An entry without a file's data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) head: Head,
    /// Empty for the place itself.
    pub(super) path: Vec<u8>,
    pub(super) target: Vec<u8>,
    /// Extended attributes.
    pub(super) attributes: Vec<(Vec<u8>, Vec<u8>)>,
}

impl Head {
    pub(super) fn new(kind: Kind, place: u8) -> Self {
        Self {
            kind,
            place,
            mode: 0,
            uid: 0,
            gid: 0,
            seconds: 0,
            nanoseconds: 0,
            size: 0,
            path_length: 0,
            target_length: 0,
            attributes_length: 0,
        }
    }

    /// None if it is invalid.
    pub(super) fn parse(mut bytes: &[u8]) -> Option<Self> {
        let head = Self {
            kind: Kind::parse(bytes.try_get_u8().ok()?)?,
            place: bytes.try_get_u8().ok()?,
            mode: bytes.try_get_u32_le().ok()?,
            uid: bytes.try_get_u32_le().ok()?,
            gid: bytes.try_get_u32_le().ok()?,
            seconds: bytes.try_get_i64_le().ok()?,
            nanoseconds: bytes.try_get_u32_le().ok()?,
            size: bytes.try_get_u64_le().ok()?,
            path_length: bytes.try_get_u16_le().ok()?,
            target_length: bytes.try_get_u16_le().ok()?,
            attributes_length: bytes.try_get_u32_le().ok()?,
        };
        let short = usize::from(head.path_length) <= MAX_PATH
            && usize::from(head.target_length) <= MAX_PATH
            && head.attributes_length as usize <= MAX_ATTRIBUTES;
        (short && head.mode <= 0o7777 && head.nanoseconds < 1_000_000_000 && i64::try_from(head.size).is_ok())
            .then_some(head)
    }

    /// The length of what follows the head.
    pub(super) fn names_length(&self) -> usize {
        usize::from(self.path_length) + usize::from(self.target_length) + self.attributes_length as usize
    }
}

impl Entry {
    /// `names` must have the length that the head says. None if it is invalid.
    pub(super) fn parse(head: Head, names: &[u8]) -> Option<Self> {
        let (path, rest) = names.split_at_checked(head.path_length.into())?;
        let (target, attributes) = rest.split_at_checked(head.target_length.into())?;
        let valid = is_inside(path) && (head.kind != Kind::Link || is_inside(target));
        let attributes = parse_attributes(attributes)?;
        valid.then(|| Self { head, path: path.to_vec(), target: target.to_vec(), attributes })
    }

    /// None if a part of it is too long.
    pub(super) fn encode(&self, out: &mut Vec<u8>) -> Option<()> {
        let mut attributes = Vec::new();
        for (name, value) in &self.attributes {
            attributes.put_u16_le(u16::try_from(name.len()).ok()?);
            attributes.put_u32_le(u32::try_from(value.len()).ok()?);
            attributes.extend_from_slice(name);
            attributes.extend_from_slice(value);
        }
        if self.path.len() > MAX_PATH || self.target.len() > MAX_PATH || attributes.len() > MAX_ATTRIBUTES {
            return None;
        }
        let head = &self.head;
        out.put_u8(head.kind as u8);
        out.put_u8(head.place);
        out.put_u32_le(head.mode);
        out.put_u32_le(head.uid);
        out.put_u32_le(head.gid);
        out.put_i64_le(head.seconds);
        out.put_u32_le(head.nanoseconds);
        out.put_u64_le(head.size);
        out.put_u16_le(u16::try_from(self.path.len()).ok()?);
        out.put_u16_le(u16::try_from(self.target.len()).ok()?);
        out.put_u32_le(u32::try_from(attributes.len()).ok()?);
        out.extend_from_slice(&self.path);
        out.extend_from_slice(&self.target);
        out.extend_from_slice(&attributes);
        Some(())
    }
}

fn parse_attributes(mut bytes: &[u8]) -> Option<Vec<(Vec<u8>, Vec<u8>)>> {
    let mut attributes = Vec::new();
    while !bytes.is_empty() {
        let name_length = usize::from(bytes.try_get_u16_le().ok()?);
        let value_length = bytes.try_get_u32_le().ok()? as usize;
        let (name, rest) = bytes.split_at_checked(name_length)?;
        let (value, rest) = rest.split_at_checked(value_length)?;
        attributes.push((name.to_vec(), value.to_vec()));
        bytes = rest;
    }
    Some(attributes)
}

/// Whether a path stays in its place as it is written. Links on the way are refused when it is opened.
fn is_inside(path: &[u8]) -> bool {
    let is_name = |name: &[u8]| !name.is_empty() && name != b"." && name != b".." && !name.contains(&0);
    path.is_empty() || path.split(|byte| *byte == b'/').all(is_name)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn entry(path: &[u8]) -> Entry {
        let head = Head { mode: 0o1755, uid: 7, seconds: -3, nanoseconds: 5, size: 9, ..Head::new(Kind::File, 2) };
        Entry { head, path: path.to_vec(), target: Vec::new(), attributes: vec![(b"user.a".to_vec(), b"b".to_vec())] }
    }

    fn parse(bytes: &[u8]) -> Option<Entry> {
        let head = Head::parse(bytes.get(..HEAD_LENGTH)?)?;
        Entry::parse(head, bytes.get(HEAD_LENGTH..HEAD_LENGTH + head.names_length())?)
    }

    #[test]
    fn an_entry_comes_back_as_it_was_written() {
        let mut bytes = Vec::new();
        entry(b"a/b\xff").encode(&mut bytes).unwrap();
        let parsed = parse(&bytes).unwrap();
        let expected = entry(b"a/b\xff");
        assert_eq!((&parsed.path, &parsed.attributes), (&expected.path, &expected.attributes));
        assert_eq!((parsed.head.mode, parsed.head.uid, parsed.head.seconds), (0o1755, 7, -3));
    }

    #[test]
    fn paths_that_leave_their_place_are_refused() {
        for path in [&b"/etc/passwd"[..], b"..", b"a/../../b", b"a//b", b"a/", b".", b"a\0b"] {
            let mut bytes = Vec::new();
            entry(path).encode(&mut bytes).unwrap();
            assert!(parse(&bytes).is_none(), "{}", String::from_utf8_lossy(path));
        }
    }

    proptest! {
        #[test]
        fn any_bytes_parse(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse(&bytes);
        }
    }
}
