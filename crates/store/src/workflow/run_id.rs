//! The id of a run. It becomes part of paths, keys and URLs, so it is restricted to safe characters.

use std::fmt;
use std::str::FromStr;

/// 1 to 128 letters, digits, `-` and `_`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RunId(String);

/// The text is not a valid run id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a run id has 1 to 128 letters, digits, - or _")]
pub struct RunIdError;

impl RunId {
    pub fn random() -> Self {
        Self(crate::secrets::new_uuid())
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for RunId {
    type Err = RunIdError;

    fn from_str(text: &str) -> Result<Self, RunIdError> {
        let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
        if (1..=128).contains(&text.len()) && text.bytes().all(is_allowed) {
            return Ok(Self(text.to_owned()));
        }
        Err(RunIdError)
    }
}

impl fmt::Display for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_could_leave_a_directory_is_no_run() {
        for bad in ["", ".", "..", "../x", "a/b", "a\\b", "a b", "a\0", "ä", &"x".repeat(129)] {
            assert_eq!(bad.parse::<RunId>(), Err(RunIdError), "{bad:?}");
        }
        for good in ["a", "A-1_b", RunId::random().as_str()] {
            assert!(good.parse::<RunId>().is_ok(), "{good:?}");
        }
    }
}
