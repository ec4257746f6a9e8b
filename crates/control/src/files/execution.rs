//! The directories of an execution: its files lie below `executions/{name}`, on the host and in its sandboxes alike.

use isopod_store::ExecutionName;

use super::path::InnerPath;
use crate::workspace::EXECUTIONS;

/// The sub-directories that every execution has. The first parts of their paths are the beginnings of keys.
pub(crate) const SUB_DIRS: [&str; 7] =
    ["artifacts", "temp", "results", "results/plots", "results/reports", "outputs", "logs"];

/// Where the files of an execution are, below the top of the workspace.
pub(crate) fn subtree(name: &ExecutionName) -> InnerPath {
    InnerPath::root().join(EXECUTIONS).join(name.as_str())
}
