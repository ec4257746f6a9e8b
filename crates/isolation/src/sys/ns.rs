//! Entering and leaving namespaces.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

use super::check;

/// Namespaces to create or to enter, as the kernel's bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Namespaces(u64);

impl Namespaces {
    /// User and group ids, capabilities.
    pub const USER: Self = Self(libc::CLONE_NEWUSER as u64);
    /// Mounts.
    pub const MOUNT: Self = Self(libc::CLONE_NEWNS as u64);
    /// Process ids.
    pub const PID: Self = Self(libc::CLONE_NEWPID as u64);
    /// Network.
    pub const NET: Self = Self(libc::CLONE_NEWNET as u64);
    /// System V and POSIX message IPC.
    pub const IPC: Self = Self(libc::CLONE_NEWIPC as u64);
    /// Host name.
    pub const UTS: Self = Self(libc::CLONE_NEWUTS as u64);
    /// The view of cgroups.
    pub const CGROUP: Self = Self(libc::CLONE_NEWCGROUP as u64);
    /// The clocks that count from boot.
    pub const TIME: Self = Self(0x80);

    /// Both.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    pub(crate) const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    pub(crate) const fn bits(self) -> u64 {
        self.0
    }
}

/// Moves to new namespaces. `PID` and `TIME` take effect only for children.
pub fn unshare(namespaces: Namespaces) -> io::Result<()> {
    // SAFETY: unshare takes one integer. None of the flags in `Namespaces` unshares memory or fd tables.
    check(unsafe { libc::syscall(libc::SYS_unshare, namespaces.bits()) }).map(drop)
}

/// Enters the namespace of a `/proc/PID/ns/*` descriptor, or the namespaces of a pidfd.
pub fn enter(fd: impl AsFd, namespaces: Namespaces) -> io::Result<()> {
    // SAFETY: setns takes a borrowed fd, open for the length of the call, and an integer.
    check(unsafe { libc::syscall(libc::SYS_setns, fd.as_fd().as_raw_fd(), namespaces.bits()) }).map(drop)
}
