//! Typed ids. They have only lowercase letters and digits, because an id is also part of a DNS label and a directory name.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Identifies a sandbox for its whole life, across pauses and resumes.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct SandboxId(String);

/// Identifies one incarnation of a sandbox. Every cold start gets a new one.
///
/// A sweep or a retry names the execution it means, so a late one never affects the next incarnation.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ExecutionId(String);

/// Identifies a snapshot on a node.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct SnapshotId(String);

/// Why a text is not a valid id.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IdError {
    /// The text is empty or too long for a DNS label.
    #[error("an id has 1 to 40 characters, this one has {0}")]
    Length(usize),
    /// The text has a character other than a lowercase letter or a digit.
    #[error("an id has only lowercase letters and digits, this one has {0:?}")]
    Character(char),
}

const ALPHABET: &[u8; 36] = b"abcdefghijklmnopqrstuvwxyz0123456789";
const RANDOM_LENGTH: usize = 20;

impl SandboxId {
    /// Makes an id from random bytes, one character each, after an `i` as in E2B.
    pub fn from_random(bytes: [u8; RANDOM_LENGTH]) -> Self {
        Self(with_prefix('i', bytes))
    }
}

impl ExecutionId {
    /// Makes an id from random bytes, after an `x`, so that the two kinds of ids look different in a log.
    pub fn from_random(bytes: [u8; RANDOM_LENGTH]) -> Self {
        Self(with_prefix('x', bytes))
    }
}

impl SnapshotId {
    /// Makes an id from random bytes, after an `s`.
    pub fn from_random(bytes: [u8; RANDOM_LENGTH]) -> Self {
        Self(with_prefix('s', bytes))
    }
}

fn with_prefix(prefix: char, bytes: [u8; RANDOM_LENGTH]) -> String {
    let letters = bytes.iter().map(|byte| ALPHABET[usize::from(*byte) % ALPHABET.len()]);
    std::iter::once(prefix).chain(letters.map(char::from)).collect()
}

fn check(text: &str) -> Result<(), IdError> {
    if text.is_empty() || text.len() > 40 {
        return Err(IdError::Length(text.len()));
    }
    match text.chars().find(|c| !c.is_ascii_lowercase() && !c.is_ascii_digit()) {
        Some(other) => Err(IdError::Character(other)),
        None => Ok(()),
    }
}

macro_rules! id_conversions {
    ($name:ident) => {
        impl $name {
            /// The id as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl TryFrom<String> for $name {
            type Error = IdError;

            fn try_from(text: String) -> Result<Self, IdError> {
                check(&text)?;
                Ok(Self(text))
            }
        }

        impl FromStr for $name {
            type Err = IdError;

            fn from_str(text: &str) -> Result<Self, IdError> {
                Self::try_from(text.to_owned())
            }
        }

        impl From<$name> for String {
            fn from(id: $name) -> String {
                id.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

id_conversions!(SandboxId);
id_conversions!(ExecutionId);
id_conversions!(SnapshotId);

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn names_that_could_leave_a_directory_or_a_host_are_refused() {
        for bad in ["", ".", "..", "a/b", "A", "i-1", "i_1", "ü", "a\0", &"a".repeat(41)] {
            assert!(bad.parse::<SandboxId>().is_err(), "{bad:?} was accepted");
        }
    }

    proptest! {
        #[test]
        fn a_random_id_is_a_valid_id(bytes: [u8; 20]) {
            let id = SandboxId::from_random(bytes);
            prop_assert_eq!(id.as_str().parse::<SandboxId>().unwrap(), id);
        }
    }
}
