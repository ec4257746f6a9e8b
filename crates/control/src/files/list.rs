//! Which files an execution has.

use isopod_store::clock::Timestamp;
use rustix::fs::FileType;
use serde::Serialize;
use utoipa::ToSchema;

use super::error::FileError;
use super::key::{METADATA, parse_prefix};
use super::path::InnerPath;
use super::store::Files;
use super::tree::Tree;
use super::walk::Found;

/// Which of them.
#[derive(Clone, Debug, Default)]
pub struct KeyQuery {
    pub prefix: String,
    /// Written at that time or later.
    pub modified_since: Option<Timestamp>,
    /// Only keys behind this one.
    pub after: Option<String>,
    pub limit: usize,
}

/// One of them.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = ExecutionFile)]
pub struct ListedFile {
    pub key: String,
    pub(crate) size: u64,
    pub(crate) modified_at: Timestamp,
}

impl Files {
    /// The files in the order of their keys, and whether there are more. Notes about files and unfinished ones are none.
    pub fn list(&self, query: &KeyQuery) -> Result<(Vec<ListedFile>, bool), FileError> {
        let prefix = parse_prefix(&query.prefix);
        let found = files_in(&self.tree()?, &InnerPath::root())?;
        let names: std::collections::HashSet<&str> = found.iter().map(|found| found.path.as_str()).collect();
        let is_note = |key: &str| key.strip_suffix(METADATA).is_some_and(|file| names.contains(file));
        let since = query.modified_since.map_or(i64::MIN, |since| since.0);
        let wanted = found.iter().filter(|found| {
            let key = found.path.as_str();
            key.starts_with(&prefix)
                && query.after.as_deref().is_none_or(|after| key > after)
                && found.modified_ms() >= since
                && !is_note(key)
        });
        let mut listed: Vec<ListedFile> = wanted.take(query.limit.saturating_add(1)).map(listed).collect();
        let has_more = listed.len() > query.limit;
        listed.truncate(query.limit);
        Ok((listed, has_more))
    }

    /// The bytes of everything that is there.
    pub(super) fn measure(&self, tree: &Tree) -> Result<u64, FileError> {
        let found = tree.list(&InnerPath::root(), usize::MAX).map_err(FileError::doing("measure", ""))?;
        Ok(found.iter().filter(|found| found.kind() == FileType::RegularFile).map(Found::size).sum())
    }
}

/// The whole regular files below a directory.
pub(super) fn files_in(tree: &Tree, path: &InnerPath) -> Result<Vec<Found>, FileError> {
    let mut found = tree.list(path, usize::MAX).map_err(FileError::doing("list", path.as_str()))?;
    found.retain(|found| found.kind() == FileType::RegularFile && !found.is_unfinished());
    Ok(found)
}

fn listed(found: &Found) -> ListedFile {
    let key = found.path.as_str().to_owned();
    ListedFile { key, size: found.size(), modified_at: Timestamp(found.modified_ms()) }
}
