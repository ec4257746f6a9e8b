//! The record of a sandbox: what is needed to adopt or remove it, in one file.
//!
//! A record is replaced atomically: the new one is written next to it, and the two are exchanged. It is not synced to
//! disk, because what it describes does not outlive the kernel. The exception is a stopped sandbox, whose files do, and
//! so its record is synced.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use isopod_wire::node::{NodeState, SandboxSpec};
use isopod_wire::{ExecutionId, Limits, SnapshotId};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::boot::ProcessIdentity;
use crate::slot::Slot;

/// Increased when older programs could not read it.
const VERSION: u32 = 1;

/// What is known about one execution.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Record {
    version: u32,
    pub(crate) execution: ExecutionId,
    /// Claimed before anything that carries its number is created.
    pub(crate) slot: Option<Slot>,
    /// The slot of the zygote whose user owns its outer user namespace. Nobody else may get that user while this
    /// execution runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) owner: Option<Slot>,
    /// It is not a sandbox. It forks into the sandboxes that name its slot as their owner.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) is_zygote: bool,
    /// The writable layer that is removed with this execution. A sandbox that is being resumed uses the layer of its
    /// earlier execution. That layer belongs to the earlier record until the new execution has an owner.
    pub(crate) area: Option<String>,
    /// The template and generation of its root file system.
    pub(crate) template: String,
    pub(crate) generation: String,
    pub(crate) limits: Limits,
    /// The host name of a copy. Others have the usual one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) host_name: Option<String>,
    /// The first process, once it exists.
    pub(crate) init: Option<ProcessIdentity>,
    /// The execution of the same sandbox that this one has taken the place of. Its record may still be there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) replaces: Option<ExecutionId>,
    /// Its processes were restored and may still be stopped, because they go on once what was saved is given up. The pids in
    /// the sandbox of those that stay stopped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) not_continued: Option<Vec<u32>>,
    /// The request, once it has an owner. Without one, the sandbox waits in a pool, and nobody adopts it.
    pub(crate) spec: Option<SandboxSpec>,
    pub(crate) state: NodeState,
    /// Its processes are stopped, because their memory is being saved.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) saving: bool,
    /// The pids in the sandbox of those among them that had been stopped before, and so stay stopped.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) stopped_before_saving: Vec<u32>,
    /// It is a snapshot and not a sandbox: its files, and its processes if it is saved. Its spec is that of its source.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) snapshot: Option<SnapshotRecord>,
    /// It is a start image of its template, which nobody owns.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) start_image: Option<StartImageRecord>,
}

/// What is known about a start image besides.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StartImageRecord {
    /// A digest of what must not have changed since.
    pub(crate) conditions: String,
}

/// What is known about a snapshot besides.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct SnapshotRecord {
    pub(crate) id: SnapshotId,
    pub(crate) made_at: SystemTime,
    /// What its memory takes on disk.
    pub(crate) bytes: u64,
    /// What its writable layer takes on disk. Earlier versions did not note it.
    #[serde(default)]
    pub(crate) disk_bytes: u64,
}

impl Record {
    pub(crate) fn new(execution: ExecutionId, template: &str, generation: &str, limits: Limits) -> Self {
        Self {
            version: VERSION,
            execution,
            slot: None,
            owner: None,
            is_zygote: false,
            area: None,
            template: template.to_owned(),
            generation: generation.to_owned(),
            limits,
            host_name: None,
            init: None,
            replaces: None,
            not_continued: None,
            spec: None,
            state: NodeState::Running,
            saving: false,
            stopped_before_saving: Vec::new(),
            snapshot: None,
            start_image: None,
        }
    }

    /// Writes the record into the sandbox's directory.
    pub(crate) fn save(&self, directory: &Path) -> io::Result<()> {
        let temporary = directory.join(NEW);
        let mut file = open_new(directory, &temporary)?;
        let text = serde_json::to_vec(self)?;
        file.write_all(&text)?;
        file.set_len(text.len() as u64)?;
        if self.is_kept_without_processes() {
            file.sync_all()?;
        }
        exchange(&temporary, &path(directory))?;
        if self.is_kept_without_processes() {
            File::open(directory)?.sync_all()?;
        }
        Ok(())
    }

    /// Its files outlive the kernel.
    fn is_kept_without_processes(&self) -> bool {
        matches!(self.state, NodeState::Stopped | NodeState::Saved)
    }

    /// Reads the record in a directory. A later version or a damaged record is an error.
    pub(crate) fn load(directory: &Path) -> io::Result<Self> {
        let record: Self = serde_json::from_slice(&fs::read(path(directory))?)?;
        if record.version > VERSION {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the record is of a later version"));
        }
        Ok(record)
    }
}

/// Random enough to be unique.
pub(crate) fn random_execution_id() -> ExecutionId {
    let mut bytes = [0; 20];
    getrandom::fill(&mut bytes).expect("the kernel provides random numbers after boot");
    ExecutionId::from_random(bytes)
}

/// The next record, or the previous one.
const NEW: &str = "record.new";
/// A file for a later record.
const SPARE: &str = "record.spare";

fn path(directory: &Path) -> PathBuf {
    directory.join("record.json")
}

/// Leaves the directory without a record, but with the file for another one.
pub(crate) fn put_aside(directory: &Path) -> io::Result<()> {
    fs::rename(path(directory), directory.join(SPARE))
}

/// An existing file is overwritten without truncating it first, because ext4 would write a truncated one to disk at
/// once.
fn open_new(directory: &Path, temporary: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).mode(0o600);
    match options.open(temporary) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            // Creating a file is expensive, so use a spare one.
            let _ = fs::rename(directory.join(SPARE), temporary);
            options.create(true).open(temporary)
        }
        other => other,
    }
}

/// Exchanges the new record with the old one, which stays as the file for the next.
fn exchange(temporary: &Path, record: &Path) -> io::Result<()> {
    match renameat_with(CWD, temporary, CWD, record, RenameFlags::EXCHANGE) {
        // There is no old one, or the file system does not support it.
        Err(Errno::NOENT | Errno::INVAL) => fs::rename(temporary, record),
        other => Ok(other?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_read_back_and_a_torn_one_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let record = Record::new("x1".parse().unwrap(), "base", "g", Limits::default());
        record.save(directory.path()).unwrap();
        assert_eq!(Record::load(directory.path()).unwrap().execution, record.execution);
        fs::write(path(directory.path()), "{\"version\":1,").unwrap();
        assert!(Record::load(directory.path()).is_err());
        fs::write(path(directory.path()), serde_json::to_vec(&Record { version: 99, ..record }).unwrap()).unwrap();
        assert!(Record::load(directory.path()).is_err());
    }
}
