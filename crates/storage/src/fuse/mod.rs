//! Answers the kernel: one session per mount, all on one file system.
//!
//! A session serves a `/dev/fuse` descriptor. Someone else may have opened and mounted it, as a sandbox does in its own
//! user namespace. The session shows one directory of the tree as its root, and nothing above it can be named. Requests
//! that do not need the store are answered by the thread that reads them. The others become tasks with a deadline.

mod answer;
mod device;
mod directory;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzz;
mod mount;
mod session;
mod watch;
mod wire;

pub use mount::{MountError, mount, unmount};
pub use session::{Session, SessionError};
