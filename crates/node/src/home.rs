//! A home: the part of a state directory that one process owns. The home of `isopod serve` passes to the next server.
//! Every `isopod run` has its own, which is swept when its process is gone.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use isopod_checkpoint::MEMORY;
use isopod_wire::ExecutionId;
use isopod_wire::node::NodeState;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::record::Record;
use crate::state::{StateError, StateRoot, make_private_directory};

/// The owner of a home.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HomeKind {
    /// The server. Its sandboxes outlive it.
    Server,
    /// One command. Its sandboxes end with it.
    Command {
        /// A name that no other command uses.
        name: String,
    },
}

/// Why a home cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum HomeError {
    /// Another process holds it.
    #[error("{path} is in use by another isopod process")]
    InUse {
        /// The home.
        path: PathBuf,
    },
    /// Its directory cannot be used.
    #[error(transparent)]
    State(#[from] StateError),
}

/// Packed memory, in a home.
const CHUNKS: &str = "chunks";
/// A killed server holds its home until the last of its threads has left the kernel, and the service manager that
/// restarts it does not wait for that.
const LOCK_TIMEOUT: Duration = Duration::from_secs(2);

/// A home that this process owns until it is dropped.
#[derive(Debug)]
pub(crate) struct Home {
    path: PathBuf,
    kind: HomeKind,
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
        // A sweep takes an unlocked home for one whose process is gone.
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

    /// Homes of commands whose process is gone. The caller now owns them.
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

    /// The home of a running command, if there is one.
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

    /// Whether a server, possibly this process, holds the state directory.
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

    /// Where packed memory is.
    pub(crate) fn chunks(&self) -> PathBuf {
        self.path.join(CHUNKS)
    }

    /// Executions that have a directory here.
    pub(crate) fn executions(&self) -> io::Result<Vec<ExecutionId>> {
        executions_in(&self.path)
    }

    /// Removes an empty home. A home with sandboxes stays.
    pub(crate) fn remove(self) {
        if fs::remove_dir(self.path.join("boxes")).is_ok() {
            // The next sweep tries again.
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}

/// Executions in all homes of a state directory, including those of other processes.
pub(crate) fn all_executions(state: &StateRoot) -> io::Result<Vec<ExecutionId>> {
    let mut executions = Vec::new();
    for entry in fs::read_dir(state.homes())? {
        executions.extend(executions_in(&entry?.path())?);
    }
    Ok(executions)
}

fn executions_in(home: &Path) -> io::Result<Vec<ExecutionId>> {
    let entries = match fs::read_dir(home.join("boxes")) {
        // The home was removed in the meantime.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other?,
    };
    let name = |entry: io::Result<fs::DirEntry>| Ok(entry?.file_name().to_string_lossy().into_owned());
    let names = entries.map(name).collect::<io::Result<Vec<String>>>()?;
    Ok(names.into_iter().filter_map(|name| name.parse().ok()).collect())
}

/// What a state directory keeps for somebody.
#[derive(Debug, Default)]
pub struct Kept {
    /// The sandboxes that run or are paused.
    pub sandboxes: Vec<KeptEntry>,
    /// The snapshots.
    pub snapshots: Vec<KeptEntry>,
    /// What sandboxes of templates start from, by the template's id.
    pub start_images: Vec<KeptEntry>,
    /// The parts of saved memory that several have in common, if some is packed.
    pub packed_memory: Option<PathBuf>,
}

/// A sandbox, a snapshot or a start image.
#[derive(Debug)]
pub struct KeptEntry {
    /// Its id.
    pub id: String,
    /// The saved memory, if it has some.
    pub memory: Option<PathBuf>,
}

/// Lists the sandboxes in a state directory that have an owner, and the snapshots.
///
/// # Errors If a record cannot be read.
pub fn list_kept(state: &StateRoot) -> io::Result<Kept> {
    let packed = state.homes().join(HomeKind::Server.name()).join(CHUNKS);
    let mut kept = Kept { packed_memory: packed.exists().then_some(packed), ..Kept::default() };
    for (directory, record) in records_in(&state.homes())? {
        let memory = (record.state == NodeState::Saved).then(|| directory.join(MEMORY));
        if record.start_image.is_some() && memory.is_some() {
            kept.start_images.push(KeptEntry { id: record.template, memory });
            continue;
        }
        let Some(spec) = record.spec else { continue };
        match record.snapshot {
            Some(snapshot) => kept.snapshots.push(KeptEntry { id: snapshot.id.to_string(), memory }),
            None => kept.sandboxes.push(KeptEntry { id: spec.sandbox.to_string(), memory }),
        }
    }
    Ok(kept)
}

/// Records of all homes, except for sandboxes in a pool, which nobody adopts.
pub(crate) fn owned_records(homes: &Path) -> io::Result<impl Iterator<Item = Record>> {
    Ok(all_records(homes)?.into_iter().filter(|record| record.spec.is_some()))
}

/// Records of all homes. An unreadable record is an error, because it could say anything.
pub(crate) fn all_records(homes: &Path) -> io::Result<Vec<Record>> {
    Ok(records_in(homes)?.into_iter().map(|(_, record)| record).collect())
}

/// Records with their directories.
fn records_in(homes: &Path) -> io::Result<Vec<(PathBuf, Record)>> {
    let mut records = Vec::new();
    for home in entries_of(homes)? {
        for directory in entries_of(&home.join("boxes"))? {
            match load(&directory) {
                Ok(record) => records.push((directory, record)),
                // Nothing has been created for it yet, or nothing is left of it.
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

/// Loads a record. If a record is replaced right after a reader opened it, the reader sees a file that is being
/// overwritten, so this tries again.
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

/// A lock on the directory of all homes. A process holds it shared between creating a home and locking it. A sweep
/// holds it exclusively.
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
        // A process that was forked in the meantime has the descriptor too, so closing ours is not enough.
        let _ = flock(&self.0, FlockOperation::Unlock);
    }
}

/// Returns `None` if another process holds the lock.
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
            // The sweep must end, whatever happens here.
            let opened = scope.spawn(open).join();
            done.store(true, Ordering::Relaxed);
            opened.unwrap();
        });
        Home::abandoned_in(homes.path()).unwrap().into_iter().for_each(Home::remove);
        assert_eq!(fs::read_dir(homes.path()).unwrap().count(), 0);
    }
}
