//! Copies and moves files within an execution, with their metadata.

use std::io::Read as _;

use bytes::Bytes;

use crate::error::FileError;
use crate::key::Key;
use crate::metadata::Metadata;
use crate::offload::FileSink as _;
use crate::path::InnerPath;
use crate::store::Files;

const PIECE: usize = 1 << 20;

impl Files {
    /// Copies a file to another key. Returns its size.
    pub fn copy(&self, from: &Key, to: Key) -> Result<u64, FileError> {
        let mut source = self.open(from)?;
        let mut put = self.begin_put(to, source.metadata.take(), Some(source.size))?;
        let mut piece = vec![0; PIECE];
        loop {
            match source.file.read(&mut piece).map_err(FileError::doing("read", from.as_str()))? {
                0 => return put.finish(),
                length => put.write(&Bytes::copy_from_slice(&piece[..length]))?,
            }
        }
    }

    /// Moves a file to another key, atomically. Returns its size.
    pub fn rename(&self, from: &Key, to: &Key) -> Result<u64, FileError> {
        let tree = self.ensure()?;
        let source = self.open(from)?;
        let parent = to.path().split().map_or_else(InnerPath::root, |(parent, _)| parent);
        tree.ensure_dir(&parent).map_err(FileError::doing("create", parent.as_str()))?;
        if from == to {
            return Ok(source.size);
        }
        let _commit = self.meter.lock_commit();
        let replaced = tree.open_file(to.path()).and_then(|file| file.metadata()).map_or(0, |found| found.len());
        Metadata::remove(&tree, to)?;
        tree.rename(from.path(), to.path()).map_err(FileError::doing("move", from.as_str()))?;
        self.meter.give_back(replaced);
        if let Some(metadata) = &source.metadata {
            metadata.write(&tree, to)?;
        }
        Metadata::remove(&tree, from)?;
        Ok(source.size)
    }
}
