//! What is said to the daemon, what it says to its supervisor, and the settings that both carry.
//!
//! Keys of a bucket are part of the settings. They travel over Unix sockets of root's and are kept in memory only.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::object::StoreError;
use crate::object::s3::{Credentials, Keys};
use crate::subtree::Subtree;
use crate::sync::SyncStatus;

/// Raised whenever a message changes.
pub(super) const VERSION: u32 = 3;

/// Which bucket, and how it is shown.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StorageSettings {
    pub store: StoreSettings,
    pub tunables: Tunables,
}

/// Where the objects are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum StoreSettings {
    /// In a directory of this host.
    Directory(PathBuf),
    S3(BucketSettings),
}

/// A bucket of Amazon's, or of a server that speaks like it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BucketSettings {
    pub bucket: String,
    /// Only what lies below this, without a `/` at either end; empty for everything.
    pub prefix: String,
    pub region: String,
    pub endpoint: Option<String>,
    pub keys: Keys,
}

/// As goofys calls them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tunables {
    /// How long a size, a time or a name that came from the bucket is believed.
    pub ttl: Duration,
    pub dir_mode: u32,
    pub file_mode: u32,
    /// Connections to the bucket that are kept open.
    pub idle_handles: usize,
    /// Local copies of what the bucket has take at most so many bytes.
    pub cache_bytes: u64,
    /// How long a call may wait for the bucket before it fails with EIO.
    pub deadline: Duration,
    /// A daemon that nobody has used for so long ends by itself.
    pub idle_exit: Duration,
}

/// How long a daemon waits for somebody to use it.
pub(super) const DEFAULT_IDLE_EXIT: Duration = Duration::from_secs(300);

impl Default for Tunables {
    fn default() -> Self {
        let settings = crate::vfs::Settings::new("");
        Self {
            ttl: settings.ttl,
            dir_mode: settings.dir_mode,
            file_mode: settings.file_mode,
            idle_handles: 64,
            cache_bytes: settings.cache_limit,
            deadline: settings.deadline,
            idle_exit: DEFAULT_IDLE_EXIT,
        }
    }
}

impl StoreSettings {
    /// In words, without keys.
    pub fn describe(&self) -> String {
        match self {
            Self::Directory(path) => format!("dir:{}", path.display()),
            Self::S3(bucket) => {
                let prefix = if bucket.prefix.is_empty() { String::new() } else { format!("/{}", bucket.prefix) };
                let endpoint = bucket.endpoint.as_ref().map(|endpoint| format!(" at {endpoint}")).unwrap_or_default();
                format!("s3://{}{prefix}{endpoint}", bucket.bucket)
            }
        }
    }
}

/// Client to daemon.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Request {
    Hello,
    /// The one who asks uses the daemon for as long as this conversation lasts.
    Attach {
        who: String,
    },
    Open(StorageSettings),
    /// New keys to the same bucket.
    Keys(Credentials),
    /// With a connection that is mounted already.
    Serve {
        owner: String,
        subtree: Subtree,
        number: u32,
        quota: Option<u64>,
        /// The owner had the same mount before, and lost it: the bucket need not be asked.
        again: bool,
    },
    /// On this host.
    Mount {
        path: PathBuf,
        subtree: Option<Subtree>,
    },
    Unmount {
        path: PathBuf,
    },
    Status,
    /// Answered when the bucket has everything that was changed before.
    Settle,
    /// As `Settle`, for at most so long; answered with the status.
    SettleFor(Duration),
    /// Gives up local copies of what the bucket has, and what cut-off uploads left in the bucket.
    Collect,
    /// Whatever uses it. Its form never changes: it also ends daemons of other versions.
    Stop,
    /// Refused while somebody uses the daemon, or something is to be uploaded.
    StopUnused,
}

/// Daemon to client.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Reply {
    Hello { version: u32, store: Option<String> },
    Done,
    Status(Box<StorageStatus>),
    Collected(Collected),
    Failed { kind: FailureKind, message: String },
}

/// What the daemon does.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StorageStatus {
    /// The process that serves.
    pub pid: u32,
    /// The process that holds its connections and starts it anew.
    #[serde(rename = "keeper")]
    pub supervisor: u32,
    /// Servers that use it.
    pub clients: Vec<String>,
    /// After so long without use it ends.
    pub idle_exit: Duration,
    pub store: Option<String>,
    pub mounts: Vec<MountStatus>,
    pub sync: SyncStatus,
}

/// One mount.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MountStatus {
    /// The sandbox's execution, or nothing for a mount of this host.
    pub owner: Option<String>,
    /// On this host.
    pub path: Option<PathBuf>,
    /// Nothing for the whole bucket.
    pub subtree: Option<Subtree>,
    /// Bytes that may be below it, where there is a limit.
    #[serde(default)]
    pub quota: Option<u64>,
}

/// What was given up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Collected {
    /// Bytes of local copies.
    pub bytes: u64,
    /// Uploads that nobody finished.
    pub uploads: u64,
}

/// What kind of thing went wrong, for those who have a hint for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FailureKind {
    NoBucket,
    Denied,
    WrongRegion,
    Unreachable,
    /// Another bucket is served already.
    OtherStore,
    /// Nothing is open.
    NotOpen,
    /// The mount point is not to be had.
    Mount,
    /// Somebody uses what was to be ended.
    InUse,
    /// The bucket does not have everything yet.
    NotUploaded,
    Other,
}

impl From<&StoreError> for FailureKind {
    fn from(error: &StoreError) -> Self {
        match error {
            StoreError::NoBucket(_) => Self::NoBucket,
            StoreError::Denied { .. } => Self::Denied,
            StoreError::WrongRegion { .. } => Self::WrongRegion,
            StoreError::Unreachable { .. } => Self::Unreachable,
            _ => Self::Other,
        }
    }
}

/// Daemon to supervisor.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum ToSupervisor {
    Settings(StorageSettings),
    /// With a pidfd of the daemon, which is no child of this supervisor.
    Worker,
    /// A new supervisor has everything now.
    Told,
    /// With the connection, and the file that aborts it if there is one.
    Keep(KeptMount),
    Forget {
        name: String,
    },
    /// The end is wanted.
    Bye,
}

/// Supervisor to a new daemon: how many mounts follow, each a [`KeptMount`] with its descriptors.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Inheritance {
    #[serde(rename = "keeper")]
    pub(super) supervisor: u32,
    pub(super) settings: Option<StorageSettings>,
    pub(super) mounts: usize,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct KeptMount {
    pub(super) name: String,
    pub(super) mount: MountStatus,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `isopod storage status --json` shows it, and has always called the supervisor so.
    #[test]
    fn the_status_calls_the_supervisor_keeper() {
        let status = StorageStatus {
            pid: 1,
            supervisor: 2,
            clients: Vec::new(),
            idle_exit: DEFAULT_IDLE_EXIT,
            store: None,
            mounts: Vec::new(),
            sync: SyncStatus::default(),
        };
        let shown = serde_json::to_value(&status).unwrap();
        assert_eq!((&shown["pid"], &shown["keeper"]), (&1.into(), &2.into()), "{shown}");
    }
}
