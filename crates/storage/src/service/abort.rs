//! Aborts connections through the kernel's list of them, which is mounted privately.
//!
//! Closing every descriptor would have the same effect. But a thread that sends a notification may itself be blocked in
//! the kernel, with the connection open, by a request that nothing will answer.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::OwnedFd;

use rustix::fs::{Mode, OFlags, openat};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};

/// All FUSE connections of this host.
#[derive(Debug)]
pub(super) struct Connections {
    list: OwnedFd,
}

impl Connections {
    pub(super) fn open() -> io::Result<Self> {
        let context = fsopen("fusectl", FsOpenFlags::FSOPEN_CLOEXEC)?;
        fsconfig_create(&context)?;
        let list = fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())?;
        Ok(Self { list })
    }

    /// The file that aborts a connection. It always refers to this connection, even if its number is reused.
    pub(super) fn aborter(&self, number: u32) -> io::Result<File> {
        let flags = OFlags::WRONLY | OFlags::CLOEXEC;
        Ok(File::from(openat(&self.list, format!("{number}/abort"), flags, Mode::empty())?))
    }
}

/// Fails all requests that wait for an answer. It is not an error if the connection is gone.
pub(super) fn abort(mut aborter: &File) {
    if let Err(error) = aborter.write_all(b"1") {
        tracing::debug!(%error, "could not abort a connection; it is already gone");
    }
}
