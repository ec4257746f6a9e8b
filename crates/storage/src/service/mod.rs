//! The daemon as processes of its own: the daemon, a supervisor that restarts it, and what clients say to it.
//!
//! ```text
//! serve, CLI ── storage/daemon.sock ──▶ daemon (file system, uploads, a session per mount)
//!                                          ▲ starts, gives back settings and connections
//!                                       supervisor (holds a copy of every connection)
//! ```
//!
//! Each watches the other: the supervisor restarts a daemon that died, the daemon a supervisor. A mount is lost only if
//! both die at the same moment; then the server mounts it anew.

mod abort;
mod channel;
mod client;
mod idle;
mod message;
mod supervision;
mod supervisor;
mod take_over;
mod worker;

pub use client::{Attachment, ClientError, DaemonProgram, NewMount, StorageClient};
pub use message::{
    BucketSettings, Collected, FailureKind, MountStatus, StorageSettings, StorageStatus, StoreSettings, Tunables,
};
pub use supervision::SupervisorProgram;
pub use supervisor::run_supervisor;
pub use worker::{WorkerError, run_worker};
