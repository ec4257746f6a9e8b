//! Validated paths below some root. A value of this type names something inside the root, whatever text it came from.

/// The prefix for names of incomplete files. Keys and paths cannot have such a name.
pub(crate) const UNFINISHED: &str = ".isopod-unfinished-";

/// The longest key that S3 accepts, minus room for the prefix of the path.
const PATH_MAX: usize = 900;
const NAME_MAX: usize = 255;

/// A path with no empty component, no `.` and no `..`. The root itself has no components.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InnerPath(String);

/// Why a text is not such a path.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PathError {
    #[error("a path must not contain `..`")]
    Leaves,
    #[error("a path must not contain a NUL byte")]
    Nul,
    #[error("a path must have at most {PATH_MAX} bytes, and each name in it at most {NAME_MAX}")]
    TooLong,
    #[error("names that begin with `{}` are reserved for incomplete files", UNFINISHED)]
    Reserved,
}

impl InnerPath {
    pub fn root() -> Self {
        Self::default()
    }

    /// Drops empty components and `.`, so that `/a//b/./c` becomes `a/b/c`.
    pub fn parse(text: &str) -> Result<Self, PathError> {
        let parts: Vec<&str> = text.split('/').filter(|part| !matches!(*part, "" | ".")).collect();
        for part in &parts {
            check_name(part)?;
        }
        let path = parts.join("/");
        if path.len() > PATH_MAX { Err(PathError::TooLong) } else { Ok(Self(path)) }
    }

    pub fn is_root(&self) -> bool {
        self.0.is_empty()
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    pub fn parts(&self) -> impl Iterator<Item = &str> {
        self.0.split('/').filter(|part| !part.is_empty())
    }

    /// Returns the parent directory and the name in it, or `None` for the root.
    pub fn split(&self) -> Option<(Self, &str)> {
        match self.0.rsplit_once('/') {
            Some((parent, name)) => Some((Self(parent.to_owned()), name)),
            None if self.is_root() => None,
            None => Some((Self::root(), &self.0)),
        }
    }

    /// Appends a name. The name is a constant, or was read from a directory.
    pub fn join(&self, name: &str) -> Self {
        if self.is_root() { Self(name.to_owned()) } else { Self(format!("{}/{name}", self.0)) }
    }
}

fn check_name(name: &str) -> Result<(), PathError> {
    match name {
        ".." => Err(PathError::Leaves),
        _ if name.contains('\0') => Err(PathError::Nul),
        _ if name.len() > NAME_MAX => Err(PathError::TooLong),
        _ if name.starts_with(UNFINISHED) => Err(PathError::Reserved),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_could_leave_is_refused() {
        for bad in ["..", "a/../b", "../a", "a/..", "/../x"] {
            assert_eq!(InnerPath::parse(bad), Err(PathError::Leaves), "{bad}");
        }
        assert_eq!(InnerPath::parse("a\0b"), Err(PathError::Nul));
        assert_eq!(InnerPath::parse(&"x".repeat(256)), Err(PathError::TooLong));
        assert_eq!(InnerPath::parse(&"x/".repeat(600)), Err(PathError::TooLong));
    }

    #[test]
    fn spellings_of_one_path_are_one_path() {
        for text in ["a/b", "/a/b", "a//b/", "./a/./b"] {
            assert_eq!(InnerPath::parse(text).unwrap().as_str(), "a/b", "{text}");
        }
        assert!(InnerPath::parse("/").unwrap().is_root());
        assert_eq!(InnerPath::parse("a").unwrap().split(), Some((InnerPath::root(), "a")));
    }

    proptest! {
        #[test]
        fn a_parsed_path_never_has_a_part_that_leaves(text in "[a./\\\\\0]{0,20}") {
            if let Ok(path) = InnerPath::parse(&text) {
                prop_assert!(path.parts().all(|part| part != ".." && part != "." && !part.is_empty()));
                prop_assert_eq!(InnerPath::parse(path.as_str()).unwrap(), path);
            }
        }
    }
}
