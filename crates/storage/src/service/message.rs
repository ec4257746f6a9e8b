//! The messages between clients, the daemon and its supervisor, and the settings in them.
//!
//! The keys of a bucket are part of the settings. They are sent over Unix sockets that only root can use, and are kept
//! only in memory.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::object::StoreError;
use crate::object::s3::{Credentials, Keys};
use crate::subtree::Subtree;
use crate::sync::SyncStatus;

/// Incremented whenever a message changes.
pub(super) const VERSION: u32 = 3;

/// Which bucket to show, and how.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StorageSettings {
    pub store: StoreSettings,
    pub tunables: Tunables,
}

/// Where the objects are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum StoreSettings {
    /// A directory of this host.
    Directory(PathBuf),
    S3(BucketSettings),
}

/// A bucket of Amazon's, or of a compatible server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BucketSettings {
    pub bucket: String,
    /// Only show what is below this prefix. No `/` at either end; empty for the whole bucket.
    pub prefix: String,
    pub region: String,
    pub endpoint: Option<String>,
    pub keys: Keys,
}

/// Settings with the names that goofys uses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tunables {
    /// How long a size, a time or a name from the bucket is considered valid.
    pub ttl: Duration,
    pub dir_mode: u32,
    pub file_mode: u32,
    /// The number of idle connections to the bucket.
    pub idle_handles: usize,
    /// The maximum size of local copies of files that the bucket has too.
    pub cache_bytes: u64,
    /// How long a file system call may wait for the bucket before it fails with EIO.
    pub deadline: Duration,
    /// How long the daemon stays unused before it ends by itself.
    pub idle_exit: Duration,
}

/// How long a daemon without settings stays unused before it ends.
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
    /// A description without keys.
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

/// From a client to the daemon.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Request {
    Hello,
    /// The client uses the daemon for as long as this connection lasts.
    Attach {
        who: String,
    },
    Open(StorageSettings),
    /// New keys for the same bucket.
    Keys(Credentials),
    /// Comes with a connection that is already mounted.
    Serve {
        owner: String,
        subtree: Subtree,
        number: u32,
        quota: Option<u64>,
        /// The owner had the same mount before and lost it. The bucket need not be contacted.
        again: bool,
    },
    /// Mounts on this host.
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
    /// Like `Settle`, with a timeout. Answered with the status.
    SettleFor(Duration),
    /// Deletes local copies of files that the bucket has, and the leftovers of interrupted uploads in the bucket.
    Collect,
    /// Ends the daemon even if it is in use. This message never changes, because it also ends daemons of other
    /// versions.
    Stop,
    /// Refused while the daemon is in use or something is not uploaded yet.
    StopUnused,
}

/// From the daemon to a client.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Reply {
    Hello { version: u32, store: Option<String> },
    Done,
    Status(Box<StorageStatus>),
    Collected(Collected),
    Failed { kind: FailureKind, message: String },
}

/// The status of the daemon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StorageStatus {
    /// The process of the daemon.
    pub pid: u32,
    /// The process of the supervisor, which holds the connections and restarts the daemon.
    #[serde(rename = "keeper")]
    pub supervisor: u32,
    /// The servers that use it.
    pub clients: Vec<String>,
    /// How long it stays unused before it ends.
    pub idle_exit: Duration,
    pub store: Option<String>,
    pub mounts: Vec<MountStatus>,
    pub sync: SyncStatus,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MountStatus {
    /// The execution of the sandbox, or `None` for a mount on this host.
    pub owner: Option<String>,
    /// The path of a mount on this host.
    pub path: Option<PathBuf>,
    /// `None` for the whole bucket.
    pub subtree: Option<Subtree>,
    /// The maximum number of bytes below it, if there is a limit.
    #[serde(default)]
    pub quota: Option<u64>,
}

/// What was deleted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Collected {
    /// The size of the local copies.
    pub bytes: u64,
    /// The number of unfinished uploads.
    pub uploads: u64,
}

/// The kind of a failure, for callers that have a hint for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FailureKind {
    NoBucket,
    Denied,
    WrongRegion,
    Unreachable,
    /// Another bucket is already being served.
    OtherStore,
    /// No store is open.
    NotOpen,
    /// The mount point cannot be used.
    Mount,
    /// The daemon is in use.
    InUse,
    /// Not everything is uploaded yet.
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

/// From the daemon to the supervisor.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum ToSupervisor {
    Settings(StorageSettings),
    /// Comes with a pidfd of the daemon, which is not a child of this supervisor.
    Worker,
    /// A new supervisor now knows everything.
    Told,
    /// Comes with the connection, and with the file that aborts it if there is one.
    Keep(KeptMount),
    Forget {
        name: String,
    },
    /// The daemon ends on purpose.
    Bye,
}

/// From the supervisor to a new daemon: how many mounts follow, each a [`KeptMount`] with its descriptors.
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

    /// `isopod storage status --json` shows this field, and its name is part of that format.
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
