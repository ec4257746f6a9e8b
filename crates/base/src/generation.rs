//! Generations on disk: `base-<16 hex>/{root,usr,manifest.json,in-use}` in the layers directory. Every [`Base`] holds a
//! shared lock on `in-use`. A generation is removed only under an exclusive lock, and only if no record names a sandbox
//! that uses it. The records matter because sandboxes outlive the process that holds the lock.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::FlockOperation;
use rustix::io::Errno;

use super::error::BaseError;
use super::manifest::{BaseFacts, Manifest};

/// A generation of the base. It is not removed while this value or a clone of it exists.
#[derive(Clone, Debug)]
pub struct Base {
    /// `base-` and the first 16 digits of the fingerprint.
    pub generation: String,
    /// The lower layer of `/`.
    pub root_layer: PathBuf,
    /// The upper of the two lower layers of `/usr`.
    pub usr_layer: PathBuf,
    /// The host's `/usr`, which goes below `usr_layer`. `None` if `usr_layer` is a full copy.
    pub host_usr: Option<PathBuf>,
    pub facts: BaseFacts,
    _held: Arc<File>,
}

/// Tells whether sandboxes use a generation, with or without a server: the layers directory, and the generation's name.
pub type IsUsed = fn(&Path, &str) -> io::Result<bool>;

/// A generation in the layers directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Generation {
    pub id: String,
    /// Whether a process holds it or a sandbox uses it.
    pub in_use: bool,
}

const PREFIX: &str = "base-";
const DIGITS: usize = 16;
const IN_USE: &str = "in-use";
/// The prefix of directories that are being built or removed. Without a running build, they are leftovers.
pub(super) const TEMPORARY: &str = ".base-tmp-";

/// The name of the generation with this fingerprint.
pub(super) fn generation_id(fingerprint: &str) -> String {
    format!("{PREFIX}{}", &fingerprint[..DIGITS.min(fingerprint.len())])
}

/// Opens an existing generation and locks it.
pub fn open_generation(layers_dir: &Path, id: &str) -> Result<Base, BaseError> {
    let missing = || BaseError::NoSuchGeneration(id.to_owned());
    if !is_generation_id(id) {
        return Err(missing());
    }
    let directory = layers_dir.join(id);
    let held = match open_marker(&directory) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(missing()),
        Err(source) => return Err(BaseError::Store { action: "open", path: directory.join(IN_USE), source }),
    };
    lock(&held, FlockOperation::LockShared, &directory)?;
    // It may have been removed while we waited. Then the lock is on a file that no longer has a name.
    if !is_same(&held, &directory.join(IN_USE)) {
        return Err(missing());
    }
    let manifest = Manifest::read(&directory)?;
    Ok(Base {
        generation: id.to_owned(),
        root_layer: directory.join("root"),
        usr_layer: directory.join("usr"),
        host_usr: manifest.host_usr,
        facts: manifest.facts,
        _held: Arc::new(held),
    })
}

/// All generations, sorted by name.
pub fn list_generations(layers_dir: &Path, is_used: IsUsed) -> Result<Vec<Generation>, BaseError> {
    let failed = |source| BaseError::Store { action: "list", path: layers_dir.to_owned(), source };
    let entries = match std::fs::read_dir(layers_dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(failed)?,
    };
    let mut generations = Vec::new();
    for entry in entries {
        let Ok(id) = entry.map_err(failed)?.file_name().into_string() else { continue };
        if is_generation_id(&id) {
            let is_held = try_lock_alone(&layers_dir.join(&id)).is_ok_and(|lock| lock.is_none());
            let in_use = is_held || has_sandboxes(layers_dir, &id, is_used)?;
            generations.push(Generation { id, in_use });
        }
    }
    generations.sort_by(|a, b| a.id.cmp(&b.id));
    Ok(generations)
}

/// Removes a generation that no process holds and no sandbox uses.
pub fn remove_generation(layers_dir: &Path, id: &str, is_used: IsUsed) -> Result<(), BaseError> {
    let directory = layers_dir.join(id);
    if !is_generation_id(id) || !directory.is_dir() {
        return Err(BaseError::NoSuchGeneration(id.to_owned()));
    }
    let _building = lock_builds(layers_dir)?;
    remove_unheld(layers_dir, id, is_used)
}

/// As [`remove_generation`]. The caller holds the build lock.
pub(super) fn remove_unheld(layers_dir: &Path, id: &str, is_used: IsUsed) -> Result<(), BaseError> {
    let directory = layers_dir.join(id);
    let alone = try_lock_alone(&directory)?.ok_or_else(|| BaseError::InUse(id.to_owned()))?;
    if has_sandboxes(layers_dir, id, is_used)? {
        return Err(BaseError::InUse(id.to_owned()));
    }
    let doomed = layers_dir.join(format!("{TEMPORARY}{id}"));
    std::fs::rename(&directory, &doomed).map_err(|source| BaseError::Store {
        action: "move away",
        path: directory,
        source,
    })?;
    // A process that now gets the lock finds that the name is gone.
    drop(alone);
    remove_tree(&doomed)
}

fn has_sandboxes(layers_dir: &Path, id: &str, is_used: IsUsed) -> Result<bool, BaseError> {
    is_used(layers_dir, id).map_err(|source| BaseError::Store {
        action: "find out whether sandboxes use",
        path: layers_dir.join(id),
        source,
    })
}

/// Creates the marker file in a generation that is being built.
pub(super) fn write_marker(directory: &Path) -> Result<(), BaseError> {
    let path = directory.join(IN_USE);
    File::create(&path).map(drop).map_err(|source| BaseError::Store { action: "create", path, source })
}

/// Only one process at a time may build or remove.
pub(super) fn lock_builds(layers_dir: &Path) -> Result<File, BaseError> {
    let path = layers_dir.join(".base.lock");
    let failed = |source| BaseError::Store { action: "open", path: path.clone(), source };
    let file = OpenOptions::new().create(true).append(true).mode(0o600).open(&path).map_err(failed)?;
    lock(&file, FlockOperation::LockExclusive, &path)?;
    Ok(file)
}

/// Removes what crashed builds and removals left. The caller holds the build lock.
pub(super) fn remove_leftovers(layers_dir: &Path) -> Result<(), BaseError> {
    let failed = |source| BaseError::Store { action: "list", path: layers_dir.to_owned(), source };
    for entry in std::fs::read_dir(layers_dir).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let is_leftover = entry.file_name().to_string_lossy().starts_with(TEMPORARY);
        match entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            true if is_leftover => remove_tree(&entry.path())?,
            // It is small, and its writer may be renaming it right now, so ignore errors.
            false if is_leftover => drop(std::fs::remove_file(entry.path())),
            _ => {}
        }
    }
    Ok(())
}

pub(super) fn remove_tree(path: &Path) -> Result<(), BaseError> {
    std::fs::remove_dir_all(path).map_err(|source| BaseError::Store { action: "remove", path: path.to_owned(), source })
}

fn is_generation_id(id: &str) -> bool {
    let digits = id.strip_prefix(PREFIX).unwrap_or_default();
    digits.len() == DIGITS && digits.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

fn open_marker(directory: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).open(directory.join(IN_USE))
}

/// Takes the exclusive lock. Returns `None` if another process holds a lock. A generation without a marker is not held.
fn try_lock_alone(directory: &Path) -> Result<Option<File>, BaseError> {
    let failed = |source| BaseError::Store { action: "lock", path: directory.join(IN_USE), source };
    let marker = OpenOptions::new().create(true).append(true).open(directory.join(IN_USE)).map_err(failed)?;
    match rustix::fs::flock(&marker, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Some(marker)),
        Err(Errno::WOULDBLOCK) => Ok(None),
        Err(errno) => Err(failed(errno.into())),
    }
}

fn lock(file: &File, operation: FlockOperation, path: &Path) -> Result<(), BaseError> {
    loop {
        match rustix::fs::flock(file, operation) {
            Err(Errno::INTR) => {}
            Ok(()) => return Ok(()),
            Err(errno) => {
                return Err(BaseError::Store { action: "lock", path: path.to_owned(), source: errno.into() });
            }
        }
    }
}

fn is_same(file: &File, path: &Path) -> bool {
    let identity = |metadata: std::fs::Metadata| (metadata.dev(), metadata.ino());
    match (file.metadata(), path.metadata()) {
        (Ok(held), Ok(named)) => identity(held) == identity(named),
        _ => false,
    }
}
