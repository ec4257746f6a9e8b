//! Writes a file of an execution, piece by piece. The file appears when it is complete. Until then, and if it never is,
//! an existing file stays as it is.

use std::fs::File;
use std::io::Write as _;
use std::sync::Arc;

use bytes::Bytes;

use crate::error::FileError;
use crate::key::Key;
use crate::metadata::Metadata;
use crate::meter::Meter;
use crate::offload::FileSink;
use crate::path::InnerPath;
use crate::store::Files;
use crate::tree::{NewFile, Tree};

/// A file that is being written.
#[derive(Debug)]
pub struct Put {
    key: Key,
    metadata: Option<Metadata>,
    tree: Tree,
    /// Declared before `new`, so that the descriptor is closed before the file is renamed or removed.
    file: File,
    new: NewFile,
    counted: Counted,
    limit: u64,
    quota: u64,
}

/// Bytes that count as used until this is dropped.
#[derive(Debug)]
struct Counted {
    meter: Arc<Meter>,
    bytes: u64,
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.meter.give_back(self.bytes);
    }
}

impl Files {
    /// Starts to write a file. `expected` is the size that the client announced.
    pub fn begin_put(&self, key: Key, metadata: Option<Metadata>, expected: Option<u64>) -> Result<Put, FileError> {
        let limits = self.store.limits;
        if expected.is_some_and(|size| size > limits.max_file_size) {
            return Err(FileError::TooLarge(limits.max_file_size));
        }
        let tree = self.ensure()?;
        self.meter.ensure_measured(|| self.measure(&tree))?;
        let parent = key.path().split().map_or_else(InnerPath::root, |(parent, _)| parent);
        tree.ensure_dir(&parent).map_err(FileError::doing("create", parent.as_str()))?;
        let (new, file) = tree.begin_file(key.path()).map_err(FileError::doing("create", key.as_str()))?;
        let counted = Counted { meter: Arc::clone(&self.meter), bytes: 0 };
        let (limit, quota) = (limits.max_file_size, limits.execution_quota);
        Ok(Put { key, metadata, tree, file, new, counted, limit, quota })
    }
}

impl FileSink for Put {
    type Done = u64;
    type Error = FileError;

    fn write(&mut self, piece: &Bytes) -> Result<(), FileError> {
        let more = u64::try_from(piece.len()).unwrap_or(u64::MAX);
        if self.counted.bytes.saturating_add(more) > self.limit {
            return Err(FileError::TooLarge(self.limit));
        }
        if !self.counted.meter.take(more, self.quota) {
            return Err(FileError::Quota(self.quota));
        }
        self.counted.bytes += more;
        self.file.write_all(piece).map_err(FileError::doing("write", self.key.as_str()))
    }

    /// Returns the size of the file.
    fn finish(self) -> Result<u64, FileError> {
        let Self { key, metadata, tree, file, new, mut counted, .. } = self;
        drop(file);
        let _commit = counted.meter.lock_commit();
        let replaced = tree.open_file(key.path()).and_then(|file| file.metadata()).map_or(0, |found| found.len());
        // In this order, a crash in between leaves a file without metadata, never with the metadata of another file.
        Metadata::remove(&tree, &key)?;
        new.finish().map_err(FileError::doing("rename", key.as_str()))?;
        let size = std::mem::take(&mut counted.bytes);
        counted.meter.give_back(replaced);
        if let Some(metadata) = &metadata {
            metadata.write(&tree, &key)?;
        }
        Ok(size)
    }
}
