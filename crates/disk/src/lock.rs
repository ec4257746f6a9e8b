//! One process at a time sets up or closes a disk: a lock on `disk.lock` in the state directory.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::FlockOperation;
use rustix::io::Errno;

use super::error::{Context, DiskError};

const TIMEOUT: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(5);

/// Held from here until dropped. The kernel lets go of it when the process dies.
#[derive(Debug)]
pub(super) struct SetupLock {
    file: File,
    path: PathBuf,
}

impl SetupLock {
    /// Waits for the lock, but not for ever.
    pub(super) fn acquire(state_dir: &Path) -> Result<Self, DiskError> {
        let path = state_dir.join("disk.lock");
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let file = open(&path).doing("open", &path)?;
            match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
                // Whoever destroyed the disk in between removed the file: then this is a lock on nothing.
                Ok(()) if is_still_at(&file, &path) => return Ok(Self { file, path }),
                Ok(()) | Err(Errno::INTR) => continue,
                Err(Errno::WOULDBLOCK) if Instant::now() < deadline => std::thread::sleep(PAUSE),
                Err(Errno::WOULDBLOCK) => return Err(DiskError::SetupBusy(path)),
                Err(errno) => return Err(errno).doing("lock", path),
            }
        }
    }

    /// The lock, or nothing while another process has it.
    pub(super) fn try_acquire(state_dir: &Path) -> Result<Option<Self>, DiskError> {
        let path = state_dir.join("disk.lock");
        let file = open(&path).doing("open", &path)?;
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(is_still_at(&file, &path).then_some(Self { file, path })),
            Err(Errno::WOULDBLOCK | Errno::INTR) => Ok(None),
            Err(errno) => Err(errno).doing("lock", path),
        }
    }

    /// Another handle of the same lock, for a child process: the lock is held until both are closed. So a child that
    /// outlives a killed parent is waited for by the next one, instead of working on the same file.
    pub(super) fn share(&self) -> io::Result<File> {
        self.file.try_clone()
    }

    /// Removes the file too, as the last step of destroying a disk.
    pub(super) fn remove(self) -> Result<(), DiskError> {
        std::fs::remove_file(&self.path).doing("remove", &self.path)
    }
}

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(path)
}

fn is_still_at(file: &File, path: &Path) -> bool {
    match (file.metadata(), std::fs::symlink_metadata(path)) {
        (Ok(held), Ok(there)) => (held.dev(), held.ino()) == (there.dev(), there.ino()),
        _ => false,
    }
}
