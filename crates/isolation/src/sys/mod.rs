//! Thin safe wrappers around system calls that `rustix` lacks or marks unsafe. The only `unsafe` of this crate.
//!
//! Wrappers take owned or borrowed fds and typed flags, return `io::Result`, and decide nothing.

#![expect(unsafe_code, reason = "system calls that have no safe binding elsewhere")]

pub mod btrfs;
pub mod cred;
mod ioctl;
pub mod lease;
pub mod loop_device;
pub mod mount;
pub mod ns;
pub mod peer;
pub mod process;
pub mod project_quota;
pub mod ptrace;
pub mod seccomp;
pub mod signal;
pub mod socket;

use std::io;

/// Turns the `-1` convention of libc into a result.
fn check(result: libc::c_long) -> io::Result<libc::c_long> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}
