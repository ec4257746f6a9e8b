//! A lock on `disk.lock` in the state directory, so that only one process at a time sets up or closes the disk.

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

/// The lock, held until this is dropped. The kernel releases it if the process dies.
#[derive(Debug)]
pub(super) struct SetupLock {
    file: File,
    path: PathBuf,
}

impl SetupLock {
    /// Waits for the lock, with a timeout.
    pub(super) fn acquire(state_dir: &Path) -> Result<Self, DiskError> {
        let path = state_dir.join("disk.lock");
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let file = open(&path).doing("open", &path)?;
            match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
                // If another process destroyed the disk in between, it removed the file, and this is a lock on nothing.
                Ok(()) if is_still_at(&file, &path) => return Ok(Self { file, path }),
                Ok(()) | Err(Errno::INTR) => continue,
                Err(Errno::WOULDBLOCK) if Instant::now() < deadline => std::thread::sleep(PAUSE),
                Err(Errno::WOULDBLOCK) => return Err(DiskError::SetupBusy(path)),
                Err(errno) => return Err(errno).doing("lock", path),
            }
        }
    }

    /// Takes the lock, or returns `None` if another process has it.
    pub(super) fn try_acquire(state_dir: &Path) -> Result<Option<Self>, DiskError> {
        let path = state_dir.join("disk.lock");
        let file = open(&path).doing("open", &path)?;
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(is_still_at(&file, &path).then_some(Self { file, path })),
            Err(Errno::WOULDBLOCK | Errno::INTR) => Ok(None),
            Err(errno) => Err(errno).doing("lock", path),
        }
    }

    /// Returns another handle of the same lock, for a child process. The lock is held until both handles are closed. So
    /// if the parent is killed, the next process waits for the child instead of working on the same file.
    pub(super) fn share(&self) -> io::Result<File> {
        self.file.try_clone()
    }

    /// Also removes the file. This is the last step of destroying a disk.
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
