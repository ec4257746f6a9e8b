//! Keys of an execution's files. A key whose first component is not one of the execution's directories is an artifact.
//! This way, a file is stored at the path that is returned for its name.

use crate::error::FileError;
use crate::execution::SUB_DIRS;
use crate::path::InnerPath;

const DEFAULT_DIR: &str = "artifacts";
/// The metadata of `a.csv` is in `a.csv.metadata`.
pub(crate) const METADATA: &str = ".metadata";

/// Names one file of an execution.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Key(InnerPath);

impl Key {
    pub fn parse(text: &str) -> Result<Self, FileError> {
        let path = InnerPath::parse(text)?;
        let first = path.parts().next().ok_or(FileError::EmptyKey)?;
        if is_own_dir(first) {
            return Ok(Self(path));
        }
        Ok(Self(InnerPath::parse(&format!("{DEFAULT_DIR}/{}", path.as_str()))?))
    }

    /// Like [`Key::parse`], for a file that will be written.
    pub fn parse_new(text: &str) -> Result<Self, FileError> {
        let key = Self::parse(text)?;
        // Leave room for the name of its metadata and of the temporary file.
        let name_length = key.0.split().map_or(0, |(_, name)| name.len());
        if name_length + METADATA.len() > 255 {
            return Err(crate::path::PathError::TooLong.into());
        }
        if key.as_str().ends_with(METADATA) { Err(FileError::MetadataKey) } else { Ok(key) }
    }

    pub(crate) fn path(&self) -> &InnerPath {
        &self.0
    }

    pub fn as_str(&self) -> &str {
        self.0.as_str()
    }

    /// The path of its metadata.
    pub(crate) fn metadata_path(&self) -> InnerPath {
        match self.0.split() {
            Some((parent, name)) => parent.join(&format!("{name}{METADATA}")),
            None => self.0.clone(),
        }
    }
}

/// Parses a prefix of keys in the same way as [`Key::parse`].
pub(crate) fn parse_prefix(text: &str) -> String {
    let text = text.trim_start_matches('/');
    let first = text.split('/').next().unwrap_or_default();
    if text.is_empty() || is_own_dir(first) { text.to_owned() } else { format!("{DEFAULT_DIR}/{text}") }
}

fn is_own_dir(name: &str) -> bool {
    SUB_DIRS.iter().any(|dir| dir.split('/').next() == Some(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_outside_the_known_directories_is_an_artifact() {
        let shown = |text: &str| Key::parse(text).unwrap().as_str().to_owned();
        assert_eq!(shown("test.txt"), "artifacts/test.txt");
        assert_eq!(shown("/coins/a.parquet"), "artifacts/coins/a.parquet");
        assert_eq!(shown("results/plots/p.png"), "results/plots/p.png");
        assert_eq!(shown("temp//x"), "temp/x");
        assert_eq!(shown("tempo/x"), "artifacts/tempo/x");
        assert_eq!((parse_prefix("te"), parse_prefix("results/pl")), ("artifacts/te".into(), "results/pl".into()));
    }

    #[test]
    fn keys_that_leave_or_that_stand_for_metadata_are_refused() {
        for bad in ["", "/", "../x", "a/../../x", "a\0"] {
            assert!(Key::parse(bad).is_err(), "{bad:?}");
        }
        assert!(matches!(Key::parse_new("a.metadata"), Err(FileError::MetadataKey)));
        assert_eq!(Key::parse("x/a").unwrap().metadata_path().as_str(), "artifacts/x/a.metadata");
    }
}
