//! Lists the files of an execution.

use isopod_store::clock::Timestamp;
use rustix::fs::FileType;
use serde::Serialize;
use utoipa::ToSchema;

use crate::error::FileError;
use crate::key::{METADATA, parse_prefix};
use crate::path::InnerPath;
use crate::store::Files;
use crate::tree::Tree;
use crate::walk::Found;

/// Selects files.
#[derive(Clone, Debug, Default)]
pub struct KeyQuery {
    pub prefix: String,
    /// Modified at that time or later.
    pub modified_since: Option<Timestamp>,
    /// Only keys after this one.
    pub after: Option<String>,
    pub limit: usize,
}

/// A file in a list.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = ExecutionFile)]
pub struct ListedFile {
    pub key: String,
    pub(crate) size: u64,
    pub(crate) modified_at: Timestamp,
}

impl Files {
    /// Returns the files sorted by key, and whether there are more. Skips metadata and unfinished files.
    pub fn list(&self, query: &KeyQuery) -> Result<(Vec<ListedFile>, bool), FileError> {
        let prefix = parse_prefix(&query.prefix);
        let found = files_in(&self.tree()?, &InnerPath::root())?;
        let names: std::collections::HashSet<&str> = found.iter().map(|found| found.path.as_str()).collect();
        let is_metadata = |key: &str| key.strip_suffix(METADATA).is_some_and(|file| names.contains(file));
        let since = query.modified_since.map_or(i64::MIN, |since| since.0);
        let wanted = found.iter().filter(|found| {
            let key = found.path.as_str();
            key.starts_with(&prefix)
                && query.after.as_deref().is_none_or(|after| key > after)
                && found.modified_ms() >= since
                && !is_metadata(key)
        });
        let mut listed: Vec<ListedFile> = wanted.take(query.limit.saturating_add(1)).map(listed).collect();
        let has_more = listed.len() > query.limit;
        listed.truncate(query.limit);
        Ok((listed, has_more))
    }

    /// Returns the total size of all files in bytes.
    pub(crate) fn measure(&self, tree: &Tree) -> Result<u64, FileError> {
        let found = tree.list(&InnerPath::root(), usize::MAX).map_err(FileError::doing("measure", ""))?;
        Ok(found.iter().filter(|found| found.kind() == FileType::RegularFile).map(Found::size).sum())
    }
}

/// Returns the complete regular files below a directory.
pub(crate) fn files_in(tree: &Tree, path: &InnerPath) -> Result<Vec<Found>, FileError> {
    let mut found = tree.list(path, usize::MAX).map_err(FileError::doing("list", path.as_str()))?;
    found.retain(|found| found.kind() == FileType::RegularFile && !found.is_unfinished());
    Ok(found)
}

fn listed(found: &Found) -> ListedFile {
    let key = found.path.as_str().to_owned();
    ListedFile { key, size: found.size(), modified_at: Timestamp(found.modified_ms()) }
}
