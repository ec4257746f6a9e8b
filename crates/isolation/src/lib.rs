//! Linux isolation.

mod capabilities;
pub mod cgroup;
pub mod launch;
mod seccomp;
pub mod sys;
