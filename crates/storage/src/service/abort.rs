//! Aborting connections, by the kernel's own list of them, which is mounted for us alone.
//!
//! Closing every descriptor would do the same, but a thread that tells the kernel to forget something may itself wait in
//! the kernel, with the connection open, for a call that nobody will answer.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::OwnedFd;

use rustix::fs::{Mode, OFlags, openat};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};

/// All connections of this host.
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

    /// The file that aborts a connection. It stays with this one, also when its number becomes another's.
    pub(super) fn aborter(&self, number: u32) -> io::Result<File> {
        let flags = OFlags::WRONLY | OFlags::CLOEXEC;
        Ok(File::from(openat(&self.list, format!("{number}/abort"), flags, Mode::empty())?))
    }
}

/// Everybody who waits for an answer gets an error now. A connection that is gone needs none.
pub(super) fn abort(mut aborter: &File) {
    if let Err(error) = aborter.write_all(b"1") {
        tracing::debug!(%error, "a connection was gone before it was aborted");
    }
}
