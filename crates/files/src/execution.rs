//! The directories of an execution. Its files are below `executions/{name}`, both on the host and in its sandboxes.

use isopod_store::ExecutionName;

use crate::path::InnerPath;
use crate::workspace::EXECUTIONS;

/// The subdirectories that every execution has. A key may start with the first component of each.
pub(crate) const SUB_DIRS: [&str; 7] =
    ["artifacts", "temp", "results", "results/plots", "results/reports", "outputs", "logs"];

/// Returns the directory of an execution, relative to the root of the workspace.
pub(crate) fn subtree(name: &ExecutionName) -> InnerPath {
    InnerPath::root().join(EXECUTIONS).join(name.as_str())
}
