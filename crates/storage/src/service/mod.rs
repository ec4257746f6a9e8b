//! The daemon as processes of their own: a keeper, the daemon that it keeps running, and what others say to it.
//!
//! ```text
//! serve, CLI ── storage/daemon.sock ──▶ daemon (file system, uploads, a session per mount)
//!                                          ▲ starts, gives back settings and connections
//!                                       keeper (holds a copy of every connection)
//! ```

mod abort;
mod channel;
mod client;
mod keeper;
mod message;
mod worker;

pub use client::{ClientError, DaemonProgram, StorageClient};
pub use keeper::run_keeper;
pub use message::{
    BucketSettings, Collected, FailureKind, MountStatus, StorageSettings, StorageStatus, StoreSettings, Tunables,
};
pub use worker::{WorkerError, run_worker};
