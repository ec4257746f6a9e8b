//! A path below a directory of a run. It cannot lead out of it, whoever chose it.

use std::fmt;
use std::path::Path;

/// A relative path of plain names.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct RelPath(String);

/// The text is not such a path.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{shown:?} is not a path below the run's directory")]
pub(crate) struct RelPathError {
    shown: String,
}

const MAX_LENGTH: usize = 1024;
const MAX_NAME: usize = 200;
/// The prefix of files that are being written.
pub(super) const UNFINISHED: &str = ".isopod-";

impl RelPath {
    pub(crate) fn parse(text: &str) -> Result<Self, RelPathError> {
        let is_name = |name: &str| {
            !name.is_empty()
                && name != "."
                && name != ".."
                && name.len() <= MAX_NAME
                && !name.contains('\0')
                && !name.starts_with(UNFINISHED)
        };
        match text.len() <= MAX_LENGTH && text.split('/').all(is_name) {
            true => Ok(Self(text.to_owned())),
            false => Err(RelPathError { shown: text.chars().take(100).collect() }),
        }
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    pub(crate) fn as_path(&self) -> &Path {
        Path::new(&self.0)
    }

    /// The directory part, if there is one, and the name.
    pub(super) fn split(&self) -> (Option<&str>, &str) {
        match self.0.rsplit_once('/') {
            Some((directory, name)) => (Some(directory), name),
            None => (None, &self.0),
        }
    }
}

impl fmt::Display for RelPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Component;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn paths_that_lead_out_are_refused_and_those_below_are_kept_whole() {
        let long = "a".repeat(201);
        for bad in ["", "/etc/passwd", "..", "a/../b", "../x", "a//b", "a/", "./a", "a\0b", ".isopod-x", &long] {
            assert!(RelPath::parse(bad).is_err(), "{bad:?}");
        }
        for good in ["a", "a/x.csv", "b/x.csv", "ä ö/ü", "..a", "a..", ".env", "a\\..\\b"] {
            assert_eq!(RelPath::parse(good).unwrap().as_str(), good);
        }
    }

    proptest! {
        #[test]
        fn an_accepted_path_has_only_plain_names(text in "[a./\\\\\0é]{0,12}") {
            if let Ok(path) = RelPath::parse(&text) {
                prop_assert!(path.as_path().components().all(|part| matches!(part, Component::Normal(_))));
            }
        }
    }
}
