//! The daemon as separate processes: the daemon, a supervisor that restarts it, and the messages of clients.
//!
//! ```text
//! serve, CLI ── storage/daemon.sock ──▶ daemon (file system, uploads, a session per mount)
//!                                          ▲ starts, gives back settings and connections
//!                                       supervisor (holds a copy of every connection)
//! ```
//!
//! Each watches the other: the supervisor restarts a daemon that died, and the daemon restarts a supervisor that died.
//! A mount is lost only if both die at the same moment. Then the server mounts it again.

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
