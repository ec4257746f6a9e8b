//! A home: the part of a state directory that one process owns. `isopod serve` has one that the next server takes over;
//! every `isopod run` has its own, which is swept when its process is gone.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use isopod_wire::ExecutionId;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::record::Record;
use crate::state::{StateError, StateRoot, make_private_directory};

/// Who owns a home.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HomeKind {
    /// The server. Its sandboxes outlive it.
    Server,
    /// One command. Its sandboxes end with it.
    Command {
        /// A name that no other command has.
        name: String,
    },
}

/// Why a home cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum HomeError {
    /// Another process has it.
    #[error("{path} is in use by another isopod process")]
    InUse {
        /// The home.
        path: PathBuf,
    },
    /// Its directory cannot be used.
    #[error(transparent)]
    State(#[from] StateError),
}

/// A server that was killed holds its home until the last of its threads has left the kernel, and whoever restarts it
/// does not wait for that.
const LOCK_TIMEOUT: Duration = Duration::from_secs(2);

/// A home that this process owns until it drops it.
#[derive(Debug)]
pub(crate) struct Home {
    path: PathBuf,
    kind: HomeKind,
    /// Holds the lock.
    _lock: File,
}

impl HomeKind {
    pub(crate) fn name(&self) -> &str {
        match self {
            Self::Server => "serve",
            Self::Command { name } => name,
        }
    }

    fn of(name: &str) -> Self {
        if name == "serve" { Self::Server } else { Self::Command { name: name.to_owned() } }
    }
}

impl Home {
    pub(crate) fn open(state: &StateRoot, kind: HomeKind) -> Result<Self, HomeError> {
        Self::open_in(&state.homes(), kind)
    }

    fn open_in(homes: &Path, kind: HomeKind) -> Result<Self, HomeError> {
        let path = homes.join(kind.name());
        // A sweep takes a home that nobody has locked for one whose process is gone.
        let _no_sweep = HomesLock::take(homes, FlockOperation::LockShared)?;
        make_private_directory(&path.join("boxes"))?;
        let deadline = Instant::now() + LOCK_TIMEOUT;
        loop {
            match lock(&path)? {
                Some(lock) => return Ok(Self { path, kind, _lock: lock }),
                None if Instant::now() > deadline => return Err(HomeError::InUse { path }),
                None => std::thread::sleep(Duration::from_millis(20)),
            }
        }
    }

    /// Homes of commands whose process is gone. The caller owns them now.
    pub(crate) fn abandoned(state: &StateRoot) -> io::Result<Vec<Self>> {
        Self::abandoned_in(&state.homes())
    }

    fn abandoned_in(homes: &Path) -> io::Result<Vec<Self>> {
        let _none_opens = HomesLock::take(homes, FlockOperation::LockExclusive).map_err(io::Error::other)?;
        let mut abandoned = Vec::new();
        for entry in fs::read_dir(homes)? {
            let path = entry?.path();
            let kind = HomeKind::of(&path.file_name().unwrap_or_default().to_string_lossy());
            if kind == HomeKind::Server {
                continue;
            }
            if let Ok(Some(lock)) = lock(&path) {
                abandoned.push(Self { path, kind, _lock: lock });
            }
        }
        Ok(abandoned)
    }

    /// The home of a command that still runs, if there is one.
    pub(crate) fn of_living_command(state: &StateRoot) -> io::Result<Option<PathBuf>> {
        for entry in fs::read_dir(state.homes())? {
            let entry = entry?;
            let is_command = entry.file_name() != HomeKind::Server.name();
            if is_command && matches!(lock(&entry.path()), Ok(None)) {
                return Ok(Some(entry.path()));
            }
        }
        Ok(None)
    }

    /// Whether a server has the state directory, be it this process.
    pub(crate) fn server_lives(state: &StateRoot) -> bool {
        let home = state.homes().join(HomeKind::Server.name());
        home.is_dir() && matches!(lock(&home), Ok(None))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn kind(&self) -> &HomeKind {
        &self.kind
    }

    /// The directory of one execution.
    pub(crate) fn execution_directory(&self, execution: &ExecutionId) -> PathBuf {
        self.path.join("boxes").join(execution.as_str())
    }

    /// Executions that have a directory here.
    pub(crate) fn executions(&self) -> io::Result<Vec<ExecutionId>> {
        executions_in(&self.path)
    }

    /// Removes an empty home. One with sandboxes in it stays.
    pub(crate) fn remove(self) {
        if fs::remove_dir(self.path.join("boxes")).is_ok() {
            // The next sweep tries again.
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}

/// Executions of all homes of a state directory, also of those that other processes own.
pub(crate) fn all_executions(state: &StateRoot) -> io::Result<Vec<ExecutionId>> {
    let mut executions = Vec::new();
    for entry in fs::read_dir(state.homes())? {
        executions.extend(executions_in(&entry?.path())?);
    }
    Ok(executions)
}

fn executions_in(home: &Path) -> io::Result<Vec<ExecutionId>> {
    let entries = match fs::read_dir(home.join("boxes")) {
        // A home that was removed while we looked.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other?,
    };
    let name = |entry: io::Result<fs::DirEntry>| Ok(entry?.file_name().to_string_lossy().into_owned());
    let names = entries.map(name).collect::<io::Result<Vec<String>>>()?;
    Ok(names.into_iter().filter_map(|name| name.parse().ok()).collect())
}

/// How many sandboxes of a state directory have an owner, whether they run or are paused.
///
/// # Errors
/// When a record cannot be read.
pub fn count_sandboxes(state: &StateRoot) -> io::Result<usize> {
    Ok(owned_records(&state.homes())?.count())
}

/// Records of all homes, without those of sandboxes that wait in a pool: nobody adopts these.
pub(crate) fn owned_records(homes: &Path) -> io::Result<impl Iterator<Item = Record>> {
    Ok(all_records(homes)?.into_iter().filter(|record| record.spec.is_some()))
}

/// Records of all homes. One that cannot be read is an error: what it says may be anything.
pub(crate) fn all_records(homes: &Path) -> io::Result<Vec<Record>> {
    let mut records = Vec::new();
    for home in entries_of(homes)? {
        for directory in entries_of(&home.join("boxes"))? {
            match load(&directory) {
                Ok(record) => records.push(record),
                // Nothing was made for it yet, or nothing of it is left.
                Err(error) if is_missing(&error) => {}
                Err(error) => {
                    let advice = "isopod serve removes a damaged one when it starts";
                    let text = format!("the record in {} cannot be read ({error}); {advice}", directory.display());
                    return Err(io::Error::new(error.kind(), text));
                }
            }
        }
    }
    Ok(records)
}

/// A reader that opened a record just before the next one took its place reads from a file that is written over.
fn load(directory: &Path) -> io::Result<Record> {
    const ATTEMPTS: usize = 3;
    (1..ATTEMPTS).find_map(|_| Record::load(directory).ok()).map_or_else(|| Record::load(directory), Ok)
}

fn entries_of(directory: &Path) -> io::Result<Vec<PathBuf>> {
    match fs::read_dir(directory) {
        Err(error) if is_missing(&error) => Ok(Vec::new()),
        entries => entries?.map(|entry| Ok(entry?.path())).collect(),
    }
}

fn is_missing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

/// Between making a home and locking it, its owner holds the directory of all homes shared; a sweep takes it alone.
struct HomesLock(File);

impl HomesLock {
    fn take(homes: &Path, operation: FlockOperation) -> Result<Self, StateError> {
        let directory = File::open(homes).map_err(StateError::on("open", homes))?;
        flock(&directory, operation).map_err(io::Error::from).map_err(StateError::on("lock", homes))?;
        Ok(Self(directory))
    }
}

impl Drop for HomesLock {
    fn drop(&mut self) {
        // A process that was forked meanwhile has the descriptor too, so closing ours is not enough.
        let _ = flock(&self.0, FlockOperation::Unlock);
    }
}

/// `None` when another process holds it.
fn lock(home: &Path) -> Result<Option<File>, StateError> {
    let path = home.join("lock");
    let failed = StateError::on("lock", &path);
    let file = match OpenOptions::new().create(true).truncate(false).write(true).open(&path) {
        Ok(file) => file,
        Err(error) => return Err(failed(error)),
    };
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Some(file)),
        Err(Errno::WOULDBLOCK) => Ok(None),
        Err(error) => Err(failed(error.into())),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[test]
    fn a_home_that_is_being_opened_is_never_swept() {
        let homes = tempfile::tempdir().unwrap();
        let done = AtomicBool::new(false);
        let sweep = || {
            while !done.load(Ordering::Relaxed) {
                Home::abandoned_in(homes.path()).unwrap().into_iter().for_each(Home::remove);
            }
        };
        let open = || {
            for number in 0..2000 {
                let kind = HomeKind::Command { name: format!("run-{number}") };
                let home = Home::open_in(homes.path(), kind).unwrap();
                assert!(home.path().join("boxes").is_dir(), "{number}");
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(sweep);
            // Whatever happens to it, the sweep must end.
            let opened = scope.spawn(open).join();
            done.store(true, Ordering::Relaxed);
            opened.unwrap();
        });
        Home::abandoned_in(homes.path()).unwrap().into_iter().for_each(Home::remove);
        assert_eq!(fs::read_dir(homes.path()).unwrap().count(), 0);
    }
}
