//! Entries of the sandbox's file system: stat, list, create, move, remove. Content is read and written elsewhere.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use isopod_wire::rpc::filesystem::{
    EntryInfo, FileType, ListDirRequest, ListDirResponse, MakeDirRequest, MakeDirResponse, MoveRequest, MoveResponse,
    RemoveRequest, RemoveResponse, StatRequest, StatResponse,
};

use super::{Code, Guest, GuestError};

/// A file, a directory or a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The last component of its path.
    pub name: String,
    /// Its kind. For a link, the kind of its target.
    pub kind: EntryKind,
    /// The whole path.
    pub path: String,
    /// Size in bytes.
    pub size: u64,
    /// Permission bits.
    pub mode: u32,
    /// Permissions in text form, as `ls -l` shows them.
    pub permissions: String,
    /// The name of its owner.
    pub owner: String,
    /// The name of its group.
    pub group: String,
    /// When it was last written.
    pub modified: Option<SystemTime>,
    /// The target of a link.
    pub symlink_target: Option<String>,
    /// Metadata that clients set when they wrote it.
    pub metadata: BTreeMap<String, String>,
}

/// The kind of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EntryKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A link whose target is missing or of no known kind.
    Symlink,
    /// A device, a socket or a pipe.
    Other,
}

impl Guest {
    /// Returns one entry.
    ///
    /// # Errors
    /// [`Code::NotFound`] if it does not exist.
    pub async fn stat(&self, path: impl Into<String>) -> Result<Entry, GuestError> {
        let request = StatRequest { path: path.into() };
        let reply: StatResponse = self.caller.unary("/filesystem.Filesystem/Stat", self.options(), &request).await?;
        parse_entry(reply.entry.into_option())
    }

    /// Whether the path exists.
    ///
    /// # Errors
    /// If the guest cannot tell.
    pub async fn exists(&self, path: impl Into<String>) -> Result<bool, GuestError> {
        match self.stat(path).await {
            Ok(_) => Ok(true),
            Err(error) if error.is_not_found() => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Lists a directory down to `depth` levels. A depth of 1 lists the directory's own entries.
    ///
    /// # Errors
    /// [`Code::NotFound`] if it does not exist, [`Code::InvalidArgument`] if it is not a directory.
    pub async fn list_dir(&self, path: impl Into<String>, depth: u32) -> Result<Vec<Entry>, GuestError> {
        let request = ListDirRequest { path: path.into(), depth };
        let reply: ListDirResponse =
            self.caller.unary("/filesystem.Filesystem/ListDir", self.options(), &request).await?;
        Ok(reply.entries.into_iter().map(Entry::from).collect())
    }

    /// Creates a directory and its missing parents. Returns false if it already exists.
    ///
    /// # Errors
    /// [`Code::InvalidArgument`] if the path is not a directory.
    pub async fn make_dir(&self, path: impl Into<String>) -> Result<bool, GuestError> {
        let request = MakeDirRequest { path: path.into() };
        let made: Result<MakeDirResponse, _> =
            self.caller.unary("/filesystem.Filesystem/MakeDir", self.options(), &request).await;
        match made {
            Ok(_) => Ok(true),
            Err(error) if error.code() == Some(Code::AlreadyExists) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Moves or renames an entry.
    ///
    /// # Errors
    /// [`Code::NotFound`] if it does not exist.
    pub async fn move_entry(
        &self,
        source: impl Into<String>,
        destination: impl Into<String>,
    ) -> Result<Entry, GuestError> {
        let request = MoveRequest { source: source.into(), destination: destination.into() };
        let reply: MoveResponse = self.caller.unary("/filesystem.Filesystem/Move", self.options(), &request).await?;
        parse_entry(reply.entry.into_option())
    }

    /// Removes an entry. A directory is removed with its content. Does nothing if the entry does not exist.
    ///
    /// # Errors
    /// If it cannot be removed.
    pub async fn remove(&self, path: impl Into<String>) -> Result<(), GuestError> {
        let request = RemoveRequest { path: path.into() };
        let _: RemoveResponse = self.caller.unary("/filesystem.Filesystem/Remove", self.options(), &request).await?;
        Ok(())
    }
}

pub(super) fn parse_entry(entry: Option<EntryInfo>) -> Result<Entry, GuestError> {
    entry.map(Entry::from).ok_or_else(|| GuestError::Protocol("the reply has no entry".to_owned()))
}

impl From<EntryInfo> for Entry {
    fn from(entry: EntryInfo) -> Self {
        let kind = match entry.r#type.as_known() {
            Some(FileType::FILE_TYPE_FILE) => EntryKind::File,
            Some(FileType::FILE_TYPE_DIRECTORY) => EntryKind::Directory,
            Some(FileType::FILE_TYPE_SYMLINK) => EntryKind::Symlink,
            Some(FileType::FILE_TYPE_UNSPECIFIED) | None => EntryKind::Other,
        };
        let modified = entry.modified_time.into_option().and_then(|time| parse_time(time.seconds, time.nanos));
        Self {
            name: entry.name,
            kind,
            path: entry.path,
            size: u64::try_from(entry.size).unwrap_or(0),
            mode: entry.mode,
            permissions: entry.permissions,
            owner: entry.owner,
            group: entry.group,
            modified,
            symlink_target: entry.symlink_target,
            metadata: entry.metadata.into_iter().collect(),
        }
    }
}

/// Seconds may be negative. Nanoseconds always count forward.
fn parse_time(seconds: i64, nanos: i32) -> Option<SystemTime> {
    let whole = Duration::from_secs(seconds.unsigned_abs());
    let base = if seconds < 0 { UNIX_EPOCH.checked_sub(whole) } else { UNIX_EPOCH.checked_add(whole) };
    base?.checked_add(Duration::from_nanos(u64::try_from(nanos).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absurd_times_are_left_out() {
        assert_eq!(parse_time(0, -1), None);
        assert_eq!(parse_time(i64::MAX, i32::MAX), None);
        assert_eq!(parse_time(-1, 500_000_000), UNIX_EPOCH.checked_sub(Duration::from_millis(500)));
    }
}
