//! Watches a directory for changes.

use isopod_wire::rpc::filesystem::watch_dir_response::Event as WireEvent;
use isopod_wire::rpc::filesystem::{EventType, FilesystemEvent, WatchDirRequest, WatchDirResponse};

use super::rpc::MessageStream;
use super::{Entry, Guest, GuestError};

/// What to watch, and how.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WatchDir {
    /// The directory.
    pub path: String,
    /// Whether to watch everything below it.
    pub recursive: bool,
    /// Whether each event contains the entry.
    pub include_entry: bool,
    /// Whether to watch network mounts, although changes made by other machines are not seen.
    pub allow_network_mounts: bool,
}

impl WatchDir {
    /// Watches only this directory.
    pub fn new(path: impl Into<String>) -> Self {
        Self { path: path.into(), ..Self::default() }
    }

    /// Also watches everything below it.
    pub fn recursive(mut self) -> Self {
        self.recursive = true;
        self
    }
}

/// The changes in a directory.
#[derive(Debug)]
pub struct Watch(MessageStream<WatchDirResponse>);

/// One change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileEvent {
    /// The path relative to the watched directory.
    pub name: String,
    /// What happened.
    pub change: Change,
    /// The entry, if it was requested and still exists.
    pub entry: Option<Entry>,
}

/// The kind of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Change {
    /// It was created.
    Created,
    /// Its content changed.
    Written,
    /// It was removed.
    Removed,
    /// It was renamed.
    Renamed,
    /// Its permissions or times changed.
    Chmod,
    /// A kind that this client does not know.
    Unknown,
}

impl Guest {
    /// Watches a directory. No change after the return is missed.
    ///
    /// # Errors
    /// [`Code::NotFound`](super::Code::NotFound) if it does not exist,
    /// [`Code::InvalidArgument`](super::Code::InvalidArgument) if it is not a directory.
    pub async fn watch_dir(&self, watch: WatchDir) -> Result<Watch, GuestError> {
        let request = WatchDirRequest {
            path: watch.path,
            recursive: watch.recursive,
            include_entry: watch.include_entry,
            allow_network_mounts: watch.allow_network_mounts,
        };
        let mut messages = self.caller.stream("/filesystem.Filesystem/WatchDir", self.options(), &request).await?;
        let http = &self.caller.http;
        let first: Option<WatchDirResponse> = http.within(http.timeout(), messages.next()).await?;
        match first.and_then(|message| message.event) {
            Some(WireEvent::Start(_)) => Ok(Watch(messages)),
            other => Err(GuestError::Protocol(format!("a watch began with {other:?}"))),
        }
    }
}

impl Watch {
    /// Returns the next change, or `None` if the guest ended the watch. Cancel-safe: dropping the future loses nothing.
    ///
    /// # Errors
    /// If the stream broke.
    pub async fn next(&mut self) -> Result<Option<FileEvent>, GuestError> {
        while let Some(message) = self.0.next().await? {
            if let Some(WireEvent::Filesystem(event)) = message.event {
                return Ok(Some(event.into()));
            }
        }
        Ok(None)
    }
}

impl From<FilesystemEvent> for FileEvent {
    fn from(event: FilesystemEvent) -> Self {
        let change = match event.r#type.as_known() {
            Some(EventType::EVENT_TYPE_CREATE) => Change::Created,
            Some(EventType::EVENT_TYPE_WRITE) => Change::Written,
            Some(EventType::EVENT_TYPE_REMOVE) => Change::Removed,
            Some(EventType::EVENT_TYPE_RENAME) => Change::Renamed,
            Some(EventType::EVENT_TYPE_CHMOD) => Change::Chmod,
            Some(EventType::EVENT_TYPE_UNSPECIFIED) | None => Change::Unknown,
        };
        Self { name: event.name, change, entry: event.entry.into_option().map(Entry::from) }
    }
}
