//! Fuzz entry point for the content of a bucket, to which others write as well.

use std::collections::BTreeMap;
use std::time::UNIX_EPOCH;

use super::xml;
use crate::attributes::{Attributes, Metadata};
use crate::{Subtree, name};

/// A listing in XML, a part of a key, and metadata as lines of `name: value`.
pub fn s3_answer(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let _ = xml::listing(&text);
    assert_eq!(xml::unescape(&xml::escape(&text)), text);
    if let Some(decoded) = name::decode(&text) {
        assert_eq!(name::encode(&decoded), text);
    }
    let is_name = !matches!(data, b"" | b"." | b"..") && data.len() <= name::NAME_MAX && !data.contains(&b'/');
    if is_name && !data.contains(&0) {
        assert_eq!(name::decode(&name::encode(data)).as_deref(), Some(data));
    }
    if let Ok(subtree) = text.parse::<Subtree>() {
        assert_eq!(subtree.to_string(), text);
    }
    read_metadata(&text);
}

fn read_metadata(text: &str) {
    let pairs = text.lines().filter_map(|line| line.split_once(": "));
    let metadata: Metadata = pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
    let defaults = Attributes { mode: 0o644, uid: 0, gid: 0, mtime: UNIX_EPOCH, xattrs: BTreeMap::new() };
    let (kind, attributes) = Attributes::from_metadata(&metadata, defaults.clone());
    assert!(attributes.mode <= 0o7777);
    if let Some(kind) = kind {
        let again = Attributes::from_metadata(&attributes.to_metadata(kind), defaults);
        assert_eq!(again, (Some(kind), attributes), "written attributes must be read back unchanged");
    }
}
