//! The file store: the files of all executions, by key.

use std::fs::File;
use std::sync::Arc;
use std::time::Duration;

use isopod_store::ExecutionName;

use crate::error::FileError;
use crate::execution;
use crate::execution::SUB_DIRS;
use crate::key::Key;
use crate::metadata::Metadata;
use crate::meter::{FileLimits, Meter, Meters};
use crate::offload::blocking;
use crate::path::InnerPath;
use crate::tree::{Links, Tree};
use crate::workspace::Workspace;

/// Gives access to all files of the workspace.
#[derive(Debug)]
pub struct FileStore {
    pub(crate) workspace: Workspace,
    pub(crate) limits: FileLimits,
    meters: Meters,
}

/// The files of one execution. Its methods block on the disk, so call them on a thread that may block.
#[derive(Clone, Debug)]
pub struct Files {
    pub(crate) store: Arc<FileStore>,
    pub(crate) execution: ExecutionName,
    pub(crate) meter: Arc<Meter>,
    top: Arc<Tree>,
}

/// A file that is open for reading.
#[derive(Debug)]
pub struct Opened {
    pub file: File,
    pub size: u64,
    pub modified_ms: i64,
    pub metadata: Option<Metadata>,
}

impl FileStore {
    pub fn new(workspace: Workspace, limits: FileLimits) -> Self {
        Self { workspace, limits, meters: Meters::default() }
    }

    /// Returns the files of an execution, which need not exist yet.
    pub async fn files(self: &Arc<Self>, execution: ExecutionName) -> Result<Files, FileError> {
        let top = Arc::new(self.top(Links::Refused).await?);
        let meter = self.meters.of(&execution);
        Ok(Files { store: Arc::clone(self), execution, meter, top })
    }

    /// How long an execution that nothing uses is kept. `None` keeps it for ever.
    pub fn execution_retention(&self) -> Option<Duration> {
        self.limits.execution_retention
    }

    /// Returns the tree of the whole workspace.
    pub(crate) async fn top(&self, links: Links) -> Result<Tree, FileError> {
        let root = self.workspace.root().await?.to_owned();
        blocking(move || Tree::open(&root, links).map_err(FileError::doing("open", &root.to_string_lossy()))).await
    }

    pub(crate) fn forget_meter(&self, execution: &ExecutionName) {
        self.meters.forget(execution);
    }
}

impl Files {
    /// The path of the files on the host and in sandboxes.
    pub fn root_path(&self) -> String {
        self.store.workspace.execution_mount(self.execution.as_str()).path
    }

    /// Creates the directories that every execution has.
    pub fn ensure(&self) -> Result<Tree, FileError> {
        // Usually they exist. The one that is created last proves it.
        if let Ok(tree) = self.tree()
            && tree.open_dir(&InnerPath::parse(SUB_DIRS[SUB_DIRS.len() - 1])?).is_ok()
        {
            return Ok(tree);
        }
        let subtree = execution::subtree(&self.execution);
        let failed = |source| FileError::doing("create", subtree.as_str())(source);
        self.top.ensure_dir(&subtree).map_err(failed)?;
        let tree = self.top.below(&subtree).map_err(failed)?;
        for dir in SUB_DIRS {
            let path = InnerPath::parse(dir)?;
            tree.ensure_dir(&path).map_err(FileError::doing("create", dir))?;
        }
        Ok(tree)
    }

    /// Returns the execution's directory, if it exists.
    pub(crate) fn tree(&self) -> Result<Tree, FileError> {
        let subtree = execution::subtree(&self.execution);
        self.top.below(&subtree).map_err(FileError::doing("open", subtree.as_str()))
    }

    pub fn open(&self, key: &Key) -> Result<Opened, FileError> {
        let tree = self.tree()?;
        let failed = |source| FileError::doing("open", key.as_str())(source);
        let file = tree.open_file(key.path()).map_err(failed)?;
        let found = file.metadata().map_err(failed)?;
        let modified = found.modified().map(isopod_store::clock::Timestamp::from).map_err(failed)?;
        let metadata = Metadata::read(&tree, key)?;
        Ok(Opened { file, size: found.len(), modified_ms: modified.0, metadata })
    }

    /// Removes a file and its metadata.
    pub fn delete(&self, key: &Key) -> Result<(), FileError> {
        let tree = self.tree()?;
        let _commit = self.meter.lock_commit();
        let size = tree.open_file(key.path()).and_then(|file| file.metadata()).map_or(0, |found| found.len());
        tree.remove_file(key.path()).map_err(FileError::doing("remove", key.as_str()))?;
        self.meter.give_back(size);
        Metadata::remove(&tree, key)
    }

    /// Removes all files of the execution.
    pub fn remove_everything(&self) -> Result<(), FileError> {
        let subtree = execution::subtree(&self.execution);
        self.store.forget_meter(&self.execution);
        match self.top.remove_all(&subtree) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
            result => result.map_err(FileError::doing("remove", subtree.as_str())),
        }
    }
}
