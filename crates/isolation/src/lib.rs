//! Linux isolation: the kernel's view of a sandbox. Nothing here knows of owners or HTTP.

#[cfg(test)]
mod alone;
pub mod backend;
mod capabilities;
pub mod cgroup;
pub mod fake;
pub mod launch;
mod seccomp;
pub mod sys;

pub use capabilities::{empty_bounding_set, kept_capabilities};
pub use seccomp::sandbox_filter_bytes;
