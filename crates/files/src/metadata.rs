//! The metadata of a file: a JSON object in `{file}.metadata` beside it.

use std::io::{Read as _, Write as _};

use serde_json::{Map, Value};

use crate::error::FileError;
use crate::key::Key;
use crate::tree::Tree;

/// Longer text is not treated as metadata.
pub(crate) const MAX_BYTES: usize = 16 << 10;

/// A JSON object.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Metadata(pub(crate) Map<String, Value>);

impl Metadata {
    /// Returns `None` if the text is not a JSON object, or too long.
    pub fn parse(text: &[u8]) -> Option<Self> {
        if text.len() > MAX_BYTES {
            return None;
        }
        serde_json::from_slice(text).ok().map(Self)
    }

    /// Returns the object in characters that a header can hold. All others become `\u` escapes of JSON.
    pub fn to_ascii(&self) -> String {
        let mut ascii = String::new();
        for unit in Value::Object(self.0.clone()).to_string().chars() {
            match unit {
                ' '..='~' => ascii.push(unit),
                other => {
                    let mut units = [0; 2];
                    for unit in other.encode_utf16(&mut units) {
                        ascii += &format!("\\u{unit:04x}");
                    }
                }
            }
        }
        ascii
    }

    /// Reads the metadata of a file. Code in a sandbox can write anything there, so invalid metadata counts as missing.
    pub(crate) fn read(tree: &Tree, key: &Key) -> Result<Option<Self>, FileError> {
        let path = key.metadata_path();
        let failed = |source| FileError::doing("read", path.as_str())(source);
        let file = match tree.open_file(&path).map_err(failed) {
            Ok(file) => file,
            Err(error @ (FileError::Io { .. } | FileError::Unavailable { .. })) => return Err(error),
            Err(_) => return Ok(None),
        };
        let mut text = Vec::new();
        let limit = u64::try_from(MAX_BYTES).unwrap_or(u64::MAX).saturating_add(1);
        file.take(limit).read_to_end(&mut text).map_err(failed)?;
        Ok(Self::parse(&text))
    }

    pub(crate) fn write(&self, tree: &Tree, key: &Key) -> Result<(), FileError> {
        let path = key.metadata_path();
        let failed = |source| FileError::doing("write", path.as_str())(source);
        let (new, mut file) = tree.begin_file(&path).map_err(failed)?;
        file.write_all(Value::Object(self.0.clone()).to_string().as_bytes()).map_err(failed)?;
        drop(file);
        new.finish().map_err(failed)
    }

    pub(crate) fn remove(tree: &Tree, key: &Key) -> Result<(), FileError> {
        let path = key.metadata_path();
        match tree.remove_file(&path).map_err(FileError::doing("remove", path.as_str())) {
            Err(FileError::NotFound(_) | FileError::IsDirectory(_)) | Ok(()) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_goes_through_a_header_and_back() {
        let text = "{\"a\":\"é\\n\u{1f980}\",\"n\":[1,null]}";
        let metadata = Metadata::parse(text.as_bytes()).unwrap();
        let ascii = metadata.to_ascii();
        assert!(ascii.bytes().all(|byte| (b' '..=b'~').contains(&byte)), "{ascii}");
        assert_eq!(Metadata::parse(ascii.as_bytes()), Some(metadata));
        assert_eq!(Metadata::parse(b"[1]"), None);
        assert_eq!(Metadata::parse(&vec![b' '; MAX_BYTES + 1]), None);
    }
}
