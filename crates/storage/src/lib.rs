//! The shared workspace: one bucket (or one directory) as a POSIX file system for the host and for sandboxes.
//!
//! `object` talks to the bucket, `vfs` has the tree with its journal and its local copies, `sync` uploads changes, and
//! `fuse` answers the kernel. The crate knows executions but not sandboxes. The keys of the bucket never leave it. The
//! guarantees are in `docs/semantics/storage.md`.

mod attributes;
mod daemon;
mod fuse;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod name;
mod object;
mod service;
mod subtree;
mod sync;
mod vfs;

pub use attributes::{Attributes, Kind, Metadata};
pub use daemon::{Daemon, ServeError, View};
pub use fuse::{MountError, Session, SessionError, mount, unmount};
pub use object::local::DirectoryStore;
pub use object::prefixed::Prefixed;
pub use object::s3::{Credentials, Keys, S3Settings, S3Store};
pub use object::{Content, ListRequest, Listing, ObjectInfo, ObjectStore, StoreError};
pub use service::{
    Attachment, BucketSettings, ClientError, Collected, DaemonProgram, FailureKind, MountStatus, NewMount,
    StorageClient, StorageSettings, StorageStatus, StoreSettings, SupervisorProgram, Tunables, WorkerError,
    run_supervisor, run_worker,
};
pub use subtree::{ExecutionName, InvalidExecutionName, InvalidSubtree, Subtree, SubtreeKind};
pub use sync::{Sync, SyncStatus};
pub use vfs::{
    Attr, Caller, Change, DirEntry, FsError, Ino, MountId, OpenError, Quota, ROOT, Replace, SetAttr, Settings, Statfs,
    Usage, Vfs, Watcher, XattrMode,
};
