//! Metadata that users attach to files: `X-Metadata-*` headers, stored as extended attributes `user.e2b.*`.

use std::collections::BTreeMap;
use std::ffi::CStr;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;

use http::HeaderMap;
use rustix::fs::XattrFlags;

const PREFIX: &str = "user.e2b.";
const HEADER_PREFIX: &str = "x-metadata-";
/// An attribute name has at most 255 bytes with its prefix.
const MAX_KEY: usize = 255 - PREFIX.len();
/// The total size of all keys and values of one file.
const MAX_TOTAL: usize = 4096;

/// Why headers are not valid metadata.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum MetadataError {
    #[error("metadata key is empty")]
    EmptyKey,
    #[error("metadata key '{0}' is longer than {MAX_KEY} bytes")]
    LongKey(String),
    #[error("metadata value for key '{0}' must be printable ASCII")]
    BadValue(String),
    #[error("metadata key '{0}' appears twice")]
    Twice(String),
    #[error("metadata is larger than {MAX_TOTAL} bytes")]
    TooLarge,
}

/// Reads metadata from the headers of an upload. Header names are already in lower case.
pub(crate) fn parse_metadata(headers: &HeaderMap) -> Result<BTreeMap<String, String>, MetadataError> {
    let mut found = BTreeMap::new();
    let mut total = 0;
    for (name, value) in headers {
        let Some(key) = name.as_str().strip_prefix(HEADER_PREFIX) else { continue };
        if key.is_empty() {
            return Err(MetadataError::EmptyKey);
        }
        if key.len() > MAX_KEY {
            return Err(MetadataError::LongKey(key.to_owned()));
        }
        let value = value.to_str().map_err(|_| MetadataError::BadValue(key.to_owned()))?;
        total += key.len() + value.len();
        if found.insert(key.to_owned(), value.to_owned()).is_some() {
            return Err(MetadataError::Twice(key.to_owned()));
        }
    }
    if total > MAX_TOTAL {
        return Err(MetadataError::TooLarge);
    }
    Ok(found)
}

/// Replaces all metadata of an open file.
pub(crate) fn write_metadata(file: impl AsFd, metadata: &BTreeMap<String, String>) -> io::Result<()> {
    let file = file.as_fd();
    let mut buffer = vec![0; 64 << 10];
    // A file system without extended attributes is fine as long as there are none to write.
    let length = rustix::fs::flistxattr(file, &mut buffer[..]).unwrap_or(0);
    for name in attribute_names(&buffer[..length]) {
        rustix::fs::fremovexattr(file, name)?;
    }
    for (key, value) in metadata {
        rustix::fs::fsetxattr(file, format!("{PREFIX}{key}"), value.as_bytes(), XattrFlags::empty())?;
    }
    Ok(())
}

/// The metadata of a file; empty if it cannot be read.
pub(crate) fn read_metadata(path: &Path) -> BTreeMap<String, String> {
    let mut names = [0; 4096];
    let length = match rustix::fs::listxattr(path, &mut names[..]) {
        Ok(length) if length > 0 => length,
        _ => return BTreeMap::new(),
    };
    let mut found = BTreeMap::new();
    for name in attribute_names(&names[..length]) {
        let mut value = [0; 4096];
        let Ok(read) = rustix::fs::getxattr(path, name, &mut value[..]) else { continue };
        if let (Some(key), Ok(value)) = (key_of(name), std::str::from_utf8(&value[..read])) {
            found.insert(key.to_owned(), value.to_owned());
        }
    }
    found
}

fn attribute_names(list: &[u8]) -> impl Iterator<Item = &CStr> {
    let names = list.split_inclusive(|byte| *byte == 0).filter_map(|name| CStr::from_bytes_with_nul(name).ok());
    names.filter(|name| key_of(name).is_some())
}

fn key_of(name: &CStr) -> Option<&str> {
    name.to_str().ok()?.strip_prefix(PREFIX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&str, &str)]) -> HeaderMap {
        let parsed = pairs.iter().map(|(k, v)| (k.parse::<http::HeaderName>().unwrap(), v.parse().unwrap()));
        let mut map = HeaderMap::new();
        parsed.for_each(|(name, value)| {
            map.append(name, value);
        });
        map
    }

    #[test]
    fn invalid_keys_and_large_values_are_refused() {
        assert_eq!(parse_metadata(&headers(&[("x-metadata-", "a")])), Err(MetadataError::EmptyKey));
        let long = format!("x-metadata-{}", "k".repeat(247));
        assert!(matches!(parse_metadata(&headers(&[(&long, "a")])), Err(MetadataError::LongKey(_))));
        assert_eq!(parse_metadata(&headers(&[("x-metadata-a", &"v".repeat(4096))])), Err(MetadataError::TooLarge));
        let twice = [("x-metadata-a", "1"), ("x-metadata-a", "2")];
        assert_eq!(parse_metadata(&headers(&twice)), Err(MetadataError::Twice("a".into())));
    }

    #[test]
    fn keys_are_in_lower_case_and_other_headers_ignored() {
        let found = parse_metadata(&headers(&[("X-Metadata-Some-Key", "v w"), ("accept", "*")])).unwrap();
        assert_eq!(found, BTreeMap::from([("some-key".to_owned(), "v w".to_owned())]));
    }

    #[test]
    fn writing_replaces_what_was_there() {
        let file = tempfile::NamedTempFile::new_in(std::env::current_dir().unwrap()).unwrap();
        let one = BTreeMap::from([("a".to_owned(), "1".to_owned()), ("b".to_owned(), "2".to_owned())]);
        write_metadata(file.as_file(), &one).unwrap();
        write_metadata(file.as_file(), &BTreeMap::from([("b".to_owned(), "3".to_owned())])).unwrap();
        assert_eq!(read_metadata(file.path()), BTreeMap::from([("b".to_owned(), "3".to_owned())]));
    }
}
