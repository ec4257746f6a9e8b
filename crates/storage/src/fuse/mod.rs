//! Answers the kernel: one session per mount, all on one file system.
//!
//! A session serves a descriptor of `/dev/fuse` that somebody else may have opened and mounted, as a sandbox does it in
//! its own user namespace. It shows one directory of the tree as its top, and nothing above it can be named. Calls
//! that need no store are answered by the thread that read them; the others become tasks, with a deadline.

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
