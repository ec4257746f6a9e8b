//! The workspace as the server sees it: directories below one root, which something else mounts and serves.
//!
//! `executions/<id>` holds the files of an execution and `volumes/<id>` those of a volume. Whoever works in there must
//! follow no link out of it: sandboxes write the same files.

use std::fmt;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;

use isopod_wire::compat::WORKSPACE_PATH;
use isopod_wire::node::WorkspaceMount;

/// Below it, every execution has a directory.
pub const EXECUTIONS: &str = "executions";
/// Below it, every volume has a directory.
pub const VOLUMES: &str = "volumes";
/// Metadata of a create that asks for the files of an execution, inside at the path that they have on the host.
pub const EXECUTION_KEY: &str = "execution_id";

/// Makes sure that the root is mounted and served. Called often: what is there already must cost nothing.
pub trait EnsureWorkspace: Send + Sync + fmt::Debug {
    /// Starts what serves the root, unless it runs.
    fn ensure(&self) -> Pin<Box<dyn Future<Output = Result<(), WorkspaceError>> + Send + '_>>;
}

/// Why the workspace cannot be used now.
#[derive(Debug, thiserror::Error)]
#[error("the workspace is not available: {reason}")]
pub struct WorkspaceError {
    /// In words for the log.
    pub reason: String,
}

/// The server's way to the files.
#[derive(Clone, Debug)]
pub struct Workspace {
    root: PathBuf,
    base_path: String,
    by_metadata: bool,
    starter: Option<Arc<dyn EnsureWorkspace>>,
}

impl Workspace {
    /// On a directory that needs nobody to serve it.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        let base_path = WORKSPACE_PATH.to_owned();
        Self { root: root.into(), base_path, by_metadata: true, starter: None }
    }

    /// With something that mounts the root when it is first needed.
    #[must_use]
    pub fn started_by(mut self, starter: Arc<dyn EnsureWorkspace>) -> Self {
        self.starter = Some(starter);
        self
    }

    /// Seen inside sandboxes below this path.
    #[must_use]
    pub fn at(mut self, base_path: impl Into<String>) -> Self {
        self.base_path = base_path.into();
        self
    }

    /// Whether `execution_id` in the metadata of a create means anything. Without a workspace that was asked for, it is
    /// a word of the client's own.
    #[must_use]
    pub fn by_metadata(mut self, is_wanted: bool) -> Self {
        self.by_metadata = is_wanted;
        self
    }

    /// The root, mounted.
    pub async fn root(&self) -> Result<&Path, WorkspaceError> {
        if let Some(starter) = &self.starter {
            starter.ensure().await?;
        }
        Ok(&self.root)
    }

    /// The mount of an execution's files, at the path that they have on the host.
    pub fn execution_mount(&self, id: &str) -> WorkspaceMount {
        let subtree = format!("{EXECUTIONS}/{id}");
        WorkspaceMount { path: format!("{}/{subtree}", self.base_path), subtree, read_only: false }
    }

    pub fn reads_metadata(&self) -> bool {
        self.by_metadata
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_execution_is_mounted_where_the_host_has_it() {
        let mount = Workspace::new("/state/storage/mnt").at("/opt/sentient/dev").execution_mount("e1");
        assert_eq!(mount.path, "/opt/sentient/dev/executions/e1");
        assert_eq!((mount.subtree.as_str(), mount.read_only), ("executions/e1", false));
    }
}
