//! Names of areas. They are safe as file names, whatever a caller passes.

use std::fmt;

/// 1 to 64 lowercase letters and digits, so it is never a path, a hidden file or an option.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AreaName(String);

/// Why a text is not a valid name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// Empty or too long.
    #[error("a name has 1 to 64 characters, this one has {0}")]
    Length(usize),
    /// Something other than a lowercase letter or digit.
    #[error("a name has only lowercase letters and digits, this one has {0:?}")]
    Character(char),
}

impl AreaName {
    pub fn parse(text: &str) -> Result<Self, NameError> {
        if text.is_empty() || text.len() > 64 {
            return Err(NameError::Length(text.len()));
        }
        match text.chars().find(|c| !c.is_ascii_lowercase() && !c.is_ascii_digit()) {
            Some(other) => Err(NameError::Character(other)),
            None => Ok(Self(text.to_owned())),
        }
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for AreaName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_lowercase_letters_and_digits_are_a_name() {
        for bad in ["", ".", "..", "a/b", "A", "a-b", "a b", "ä", "a\0", &"a".repeat(65)] {
            assert!(AreaName::parse(bad).is_err(), "{bad:?}");
        }
        for good in ["a", "0", "i1234abc", &"a".repeat(64)] {
            assert_eq!(AreaName::parse(good).unwrap().as_str(), good);
        }
    }
}
