//! The workspace as the server sees it: directories below a root, which another process mounts and serves.
//!
//! `executions/<id>` holds the files of an execution, and `volumes/<id>` those of a volume. Code that works in there
//! must not follow links out of it, because sandboxes write the same files.

use std::fmt;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;

use crate::DefaultMounts;
use isopod_wire::compat::WORKSPACE_PATH;
use isopod_wire::node::WorkspaceMount;

/// The directory with a subdirectory for each execution.
pub const EXECUTIONS: &str = "executions";
/// The directory with a subdirectory for each volume.
pub const VOLUMES: &str = "volumes";
/// The metadata key of a create request that mounts the files of an execution, at their path on the host.
pub const EXECUTION_KEY: &str = "execution_id";

/// Ensures that the root is mounted and served. Called often, so it must be cheap if it already is.
pub trait EnsureWorkspace: Send + Sync + fmt::Debug {
    /// Starts the process that serves the root, unless it runs.
    fn ensure(&self) -> Pin<Box<dyn Future<Output = Result<(), WorkspaceError>> + Send + '_>>;
}

/// Why the workspace cannot be used now.
#[derive(Debug, thiserror::Error)]
#[error("the workspace is not available: {reason}")]
pub struct WorkspaceError {
    /// The reason, for the log.
    pub reason: String,
}

/// Access to the workspace.
#[derive(Clone, Debug)]
pub struct Workspace {
    root: PathBuf,
    base_path: String,
    by_metadata: bool,
    bucket: Option<String>,
    default_mounts: DefaultMounts,
    starter: Option<Arc<dyn EnsureWorkspace>>,
}

impl Workspace {
    /// Uses a directory that no other process has to mount.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        let base_path = WORKSPACE_PATH.to_owned();
        let default_mounts = DefaultMounts::default();
        Self { root: root.into(), base_path, by_metadata: true, bucket: None, default_mounts, starter: None }
    }

    /// Sets what mounts the root when it is first needed.
    #[must_use]
    pub fn started_by(mut self, starter: Arc<dyn EnsureWorkspace>) -> Self {
        self.starter = Some(starter);
        self
    }

    /// Sets the path of the workspace inside sandboxes.
    #[must_use]
    pub fn at(mut self, base_path: impl Into<String>) -> Self {
        self.base_path = base_path.into();
        self
    }

    /// Sets the bucket that the workspace is stored in.
    #[must_use]
    pub fn in_bucket(mut self, bucket: Option<String>) -> Self {
        self.bucket = bucket;
        self
    }

    /// Sets what sandboxes see whose creator names no execution.
    #[must_use]
    pub fn with_default_mounts(mut self, mounts: DefaultMounts) -> Self {
        self.default_mounts = mounts;
        self
    }

    /// Sets whether `execution_id` in the metadata of a create request has a meaning. Without a configured workspace,
    /// the key belongs to the client.
    #[must_use]
    pub fn by_metadata(mut self, is_wanted: bool) -> Self {
        self.by_metadata = is_wanted;
        self
    }

    /// Returns the root after it was mounted.
    pub async fn root(&self) -> Result<&Path, WorkspaceError> {
        if let Some(starter) = &self.starter {
            starter.ensure().await?;
        }
        Ok(&self.root)
    }

    /// Returns the mount of an execution's files, at their path on the host.
    pub fn execution_mount(&self, id: &str) -> WorkspaceMount {
        let subtree = format!("{EXECUTIONS}/{id}");
        WorkspaceMount { path: format!("{}/{subtree}", self.base_path), subtree, read_only: false, ready_file: None }
    }

    pub fn reads_metadata(&self) -> bool {
        self.by_metadata
    }

    pub fn bucket(&self) -> Option<&str> {
        self.bucket.as_deref()
    }

    pub fn base_path(&self) -> &str {
        &self.base_path
    }

    pub fn default_mounts(&self) -> &DefaultMounts {
        &self.default_mounts
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
