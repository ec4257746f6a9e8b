//! Linux isolation: the kernel's view of a sandbox. Nothing here knows of owners or HTTP.

#[cfg(test)]
mod alone;
pub mod backend;
mod capabilities;
pub mod cgroup;
mod exits;
pub mod fake;
mod inotify;
pub mod launch;
mod seccomp;
pub mod sys;

pub use capabilities::{empty_bounding_set, kept_capabilities};
pub use exits::ExitWatcher;
pub use inotify::raise_inotify_limits;
pub use seccomp::sandbox_filter_bytes;
