//! Names of executions. An execution is one run of an agent that shares files with the host.

use std::fmt;

/// Letters, digits, `-`, `_` and `.`, but no leading `.`. The name is used as a directory name and as a part of object
/// keys and URLs.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ExecutionName(String);

/// The text is not a valid execution name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an execution id has 1 to 128 of a-z, A-Z, 0-9, '-', '_' and '.', and does not start with '.'")]
pub struct ExecutionNameError;

impl ExecutionName {
    pub fn parse(text: &str) -> Result<Self, ExecutionNameError> {
        if is_workspace_id(text) { Ok(Self(text.to_owned())) } else { Err(ExecutionNameError) }
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ExecutionName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Whether a text is a valid directory name for an execution or a volume: letters, digits, `.`, `_`, `-`, and no
/// leading dot.
pub fn is_workspace_id(text: &str) -> bool {
    let good = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    (1..=MAX_ID).contains(&text.len()) && !text.starts_with('.') && text.bytes().all(good)
}

const MAX_ID: usize = 128;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_execution_id_that_could_leave_its_directory_is_refused() {
        for bad in ["", ".", "..", "a/b", ".hidden", "a\0", "a b", "ü", "a%2fb", &"a".repeat(129)] {
            assert!(ExecutionName::parse(bad).is_err(), "{bad:?}");
        }
        for good in ["test_e2b_001", "550e8400-e29b-41d4-a716-446655440000", "v1.2"] {
            assert!(ExecutionName::parse(good).is_ok(), "{good:?}");
        }
    }

    #[test]
    fn ids_that_lead_elsewhere_are_refused() {
        for bad in ["", ".", "..", ".hidden", "a/b", "../a", "a\0", "a b", "ü", &"a".repeat(129)] {
            assert!(!is_workspace_id(bad), "{bad:?}");
        }
        assert!(is_workspace_id("exec_1-2.3") && is_workspace_id(&"a".repeat(128)));
    }
}
