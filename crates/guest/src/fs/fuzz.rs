//! Fuzzed: the metadata that clients attach to files.

use http::{HeaderMap, HeaderName, HeaderValue};

/// Takes lines of `name:value`, with names without `x-metadata-`.
pub fn metadata_headers(data: &[u8]) {
    let mut headers = HeaderMap::new();
    for line in data.split(|byte| *byte == b'\n').take(64) {
        let (name, value) = line.split_at(line.iter().position(|byte| *byte == b':').unwrap_or(line.len()));
        let name = HeaderName::from_bytes(&[b"x-metadata-", name].concat());
        if let (Ok(name), Ok(value)) = (name, HeaderValue::from_bytes(value)) {
            headers.append(name, value);
        }
    }
    if let Ok(metadata) = super::parse_metadata(&headers) {
        assert_eq!(metadata.len(), headers.len(), "every header is kept or refused");
    }
}
