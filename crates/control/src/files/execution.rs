//! Names of executions, and the directories that each has. An execution is one run of an agent: its files lie below
//! `executions/{name}`, on the host and in its sandboxes alike.

use std::fmt;

use super::path::InnerPath;
use crate::workspace::{EXECUTIONS, is_workspace_id};

/// Letters, digits, `-`, `_` and `.`, not `.` first: a directory's name, a part of an object key and of a URL.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct ExecutionName(String);

/// Why a text is no such name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an execution id has 1 to 128 of a-z, A-Z, 0-9, '-', '_' and '.', and does not begin with '.'")]
pub(crate) struct ExecutionNameError;

/// The sub-directories that every execution has (S4.13). The first parts of their paths are the beginnings of keys.
pub(crate) const SUB_DIRS: [(&str, &str); 7] = [
    ("artifacts_path", "artifacts"),
    ("temp_path", "temp"),
    ("results_path", "results"),
    ("plots_path", "results/plots"),
    ("reports_path", "results/reports"),
    ("outputs_path", "outputs"),
    ("logs_path", "logs"),
];

impl ExecutionName {
    pub(crate) fn parse(text: &str) -> Result<Self, ExecutionNameError> {
        if is_workspace_id(text) { Ok(Self(text.to_owned())) } else { Err(ExecutionNameError) }
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    /// Where its files are, below the top of the workspace.
    pub(crate) fn subtree(&self) -> InnerPath {
        InnerPath::root().join(EXECUTIONS).join(&self.0)
    }
}

impl fmt::Display for ExecutionName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// S4.41
    #[test]
    fn an_execution_id_that_could_leave_its_directory_is_refused() {
        for bad in ["", ".", "..", "a/b", ".hidden", "a\0", "a b", "ü", "a%2fb", &"a".repeat(129)] {
            assert!(ExecutionName::parse(bad).is_err(), "{bad:?}");
        }
        for good in ["test_e2b_001", "550e8400-e29b-41d4-a716-446655440000", "v1.2"] {
            assert!(ExecutionName::parse(good).is_ok(), "{good:?}");
        }
    }
}
