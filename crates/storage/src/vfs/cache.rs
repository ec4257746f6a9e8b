//! Local copies of files, in one directory.
//!
//! A named file `<ino>` has all bytes of a node. If the bucket does not have them yet, this is the only place where
//! they are. Chunks of an object that were only read are in a file without a name, which disappears with the process
//! unless it becomes complete.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, CWD, Mode, OFlags};

use super::error::FsError;
use super::node::{Ino, Remote};

/// How much of an object is fetched at once.
pub(crate) const CHUNK: u64 = 4 << 20;

#[derive(Debug)]
pub(crate) struct Cache {
    path: PathBuf,
    directory: OwnedFd,
    /// Empty files that were created in advance, because finding a free inode can take longer than everything else.
    spares: Mutex<Spares>,
}

#[derive(Debug, Default)]
struct Spares {
    ready: Vec<u64>,
    /// When a spare file was last requested.
    asked: Option<Instant>,
}

/// How many empty files are kept ready, and how many are created at once.
const SPARES: usize = 1024;
const SPARES_AT_ONCE: usize = 64;
/// The time after a request in which no spares are created. The disk creates one file of a directory at a time, so
/// programs that create files would have to wait for ours.
const QUIET: Duration = Duration::from_millis(250);

/// The number of the next spare file in this process.
static NEXT_SPARE: AtomicU64 = AtomicU64::new(0);

impl Cache {
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        fs::create_dir_all(path)?;
        let flags = OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::RDONLY;
        let directory = rustix::fs::open(path, flags, Mode::empty())?;
        Ok(Self { path: path.to_owned(), directory, spares: Mutex::default() })
    }

    /// Creates a new, empty copy.
    pub(crate) fn create(&self, ino: Ino) -> Result<Arc<File>, FsError> {
        if let Some(file) = self.take_spare(ino) {
            return Ok(file);
        }
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        self.open_with(ino, flags).map_err(|source| FsError::Local { what: "create", source })
    }

    /// Renames a spare file to the name of a copy. Programs that have an earlier copy with that name open keep it.
    fn take_spare(&self, ino: Ino) -> Option<Arc<File>> {
        let spare = {
            let mut spares = self.spares.lock().expect("no panic while held");
            spares.asked = Some(Instant::now());
            spares.ready.pop()?
        };
        let renamed = rustix::fs::renameat(&self.directory, spare_name(spare), &self.directory, file_name(ino));
        renamed.ok()?;
        self.open_with(ino, OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW).ok()
    }

    /// How many spare files are missing. Zero while files are being created.
    pub(crate) fn missing_spares(&self) -> usize {
        let spares = self.spares.lock().expect("no panic while held");
        let is_busy = spares.asked.is_some_and(|asked| asked.elapsed() < QUIET);
        if is_busy { 0 } else { SPARES.saturating_sub(spares.ready.len()) }
    }

    /// Creates some spare files. A full disk is not an error here.
    pub(crate) fn make_spares(&self) -> rustix::io::Result<()> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        for _ in 0..self.missing_spares().min(SPARES_AT_ONCE) {
            let spare = NEXT_SPARE.fetch_add(1, Ordering::Relaxed);
            rustix::fs::openat(&self.directory, spare_name(spare), flags, Mode::from_raw_mode(0o600))?;
            self.spares.lock().expect("no panic while held").ready.push(spare);
        }
        Ok(())
    }

    pub(crate) fn open_copy(&self, ino: Ino) -> Result<Arc<File>, FsError> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        self.open_with(ino, flags).map_err(|source| FsError::Local { what: "open", source })
    }

    /// Whether there is a copy.
    pub(crate) fn has(&self, ino: Ino) -> bool {
        rustix::fs::statat(&self.directory, file_name(ino), AtFlags::SYMLINK_NOFOLLOW).is_ok()
    }

    fn open_with(&self, ino: Ino, flags: OFlags) -> io::Result<Arc<File>> {
        let fd = rustix::fs::openat(&self.directory, file_name(ino), flags, Mode::from_raw_mode(0o600))?;
        Ok(Arc::new(File::from(fd)))
    }

    pub(crate) fn remove(&self, ino: Ino) {
        let _ = rustix::fs::unlinkat(&self.directory, file_name(ino), AtFlags::empty());
    }

    /// Creates a file for chunks of an object.
    pub(crate) fn remote_copy(&self, remote: &Remote) -> Result<Arc<RemoteCopy>, FsError> {
        let flags = OFlags::RDWR | OFlags::TMPFILE | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&self.directory, ".", flags, Mode::from_raw_mode(0o600))
            .map_err(|error| FsError::Local { what: "create", source: error.into() })?;
        Ok(Arc::new(RemoteCopy { file: File::from(file), remote: remote.clone(), present: Mutex::default() }))
    }

    /// Turns a complete copy of an object into the local copy of a node.
    pub(crate) fn adopt(&self, ino: Ino, copy: &RemoteCopy) -> Result<(), FsError> {
        let failed = |source: io::Error| FsError::Local { what: "keep", source };
        copy.file.set_len(copy.remote.size).map_err(failed)?;
        self.remove(ino);
        let path = format!("/proc/self/fd/{}", copy.file.as_raw_fd());
        rustix::fs::linkat(CWD, path, &self.directory, file_name(ino), AtFlags::SYMLINK_FOLLOW)
            .map_err(|error| failed(error.into()))
    }

    /// The directory, for making names durable. The bytes are made durable through their own files.
    pub(crate) fn directory(&self) -> io::Result<File> {
        self.directory.try_clone().map(File::from)
    }

    /// Removes all copies except these.
    pub(crate) fn retain(&self, keep: &BTreeSet<Ino>) -> io::Result<()> {
        let keep: BTreeSet<String> = keep.iter().map(|ino| file_name(*ino)).collect();
        for entry in fs::read_dir(&self.path)? {
            let entry = entry?;
            if !entry.file_name().to_str().is_some_and(|name| keep.contains(name)) {
                fs::remove_file(entry.path())?;
            }
        }
        Ok(())
    }

    /// The total and free bytes of the disk.
    pub(crate) fn statfs(&self) -> io::Result<(u64, u64)> {
        let stat = rustix::fs::fstatvfs(&self.directory)?;
        Ok((stat.f_blocks * stat.f_frsize, stat.f_bavail * stat.f_frsize))
    }
}

fn file_name(ino: Ino) -> String {
    format!("{ino:016x}")
}

fn spare_name(number: u64) -> String {
    format!("spare-{}-{number}", std::process::id())
}

/// The chunks of one object that were fetched so far.
#[derive(Debug)]
pub(crate) struct RemoteCopy {
    pub(crate) file: File,
    pub(crate) remote: Remote,
    /// The chunks that are present.
    present: Mutex<BTreeSet<u64>>,
}

impl RemoteCopy {
    /// The first missing chunk of a range.
    pub(crate) fn first_missing(&self, from: u64, to: u64) -> Option<u64> {
        let present = self.present.lock().expect("no panic while held");
        (from / CHUNK..to.div_ceil(CHUNK)).find(|chunk| !present.contains(chunk))
    }

    pub(crate) fn is_complete(&self) -> bool {
        self.first_missing(0, self.remote.size).is_none()
    }

    pub(crate) fn has(&self, chunk: u64) -> bool {
        self.present.lock().expect("no panic while held").contains(&chunk)
    }

    pub(crate) fn arrived(&self, chunk: u64) {
        self.present.lock().expect("no panic while held").insert(chunk);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spare_files_are_made_only_while_nobody_creates_any() {
        let directory = tempfile::tempdir().unwrap();
        let cache = Cache::open(directory.path()).unwrap();
        assert_eq!(cache.missing_spares(), SPARES);
        cache.make_spares().unwrap();
        assert_eq!(cache.missing_spares(), SPARES - SPARES_AT_ONCE);
        cache.create(7).unwrap();
        assert!(cache.spares.lock().unwrap().asked.is_some());
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), SPARES_AT_ONCE, "one of them has a name now");
        // Pretend that this was just now, however slow this machine is.
        cache.spares.lock().unwrap().asked = Some(Instant::now() + Duration::from_secs(3600));
        assert_eq!(cache.missing_spares(), 0);
        cache.spares.lock().unwrap().asked = Some(Instant::now() - QUIET);
        assert_eq!(cache.missing_spares(), SPARES - SPARES_AT_ONCE + 1);
    }
}
