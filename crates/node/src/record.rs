//! The record of a sandbox: what must be known to adopt or to remove it, in one file.
//!
//! It is replaced as a whole, by rename. It is not synced to disk: what it speaks of does not outlive the kernel,
//! except for the files of a stopped sandbox, and those records are synced.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use isopod_wire::node::{NodeState, SandboxSpec};
use isopod_wire::{ExecutionId, Limits};
use serde::{Deserialize, Serialize};

use crate::boot::ProcessIdentity;
use crate::slot::Slot;

/// Raised when an older program could not read it any more.
const VERSION: u32 = 1;

/// What is known about one execution.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Record {
    version: u32,
    pub(crate) execution: ExecutionId,
    /// Taken before anything that carries its number is made.
    pub(crate) slot: Option<Slot>,
    /// The writable layer that goes when this goes. A sandbox that is being resumed works on the layer of its earlier life,
    /// which that one's record owns until the new life has an owner.
    pub(crate) area: Option<String>,
    /// Template and generation that its root stands on.
    pub(crate) template: String,
    pub(crate) generation: String,
    pub(crate) limits: Limits,
    /// The first process, once there is one.
    pub(crate) init: Option<ProcessIdentity>,
    /// What was asked for, once it has an owner. Without it, it is a blank in the pool, which nobody adopts.
    pub(crate) spec: Option<SandboxSpec>,
    pub(crate) state: NodeState,
}

impl Record {
    pub(crate) fn new(execution: ExecutionId, template: &str, generation: &str, limits: Limits) -> Self {
        Self {
            version: VERSION,
            execution,
            slot: None,
            area: None,
            template: template.to_owned(),
            generation: generation.to_owned(),
            limits,
            init: None,
            spec: None,
            state: NodeState::Running,
        }
    }

    /// Writes the record into the sandbox's directory.
    pub(crate) fn save(&self, directory: &Path) -> io::Result<()> {
        let temporary = directory.join("record.new");
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&temporary)?;
        file.write_all(&serde_json::to_vec(self)?)?;
        if self.state == NodeState::Stopped {
            file.sync_all()?;
        }
        fs::rename(&temporary, path(directory))?;
        if self.state == NodeState::Stopped {
            File::open(directory)?.sync_all()?;
        }
        Ok(())
    }

    /// Reads the record of a directory. One of a later version or one that is damaged is an error.
    pub(crate) fn load(directory: &Path) -> io::Result<Self> {
        let record: Self = serde_json::from_slice(&fs::read(path(directory))?)?;
        if record.version > VERSION {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the record is of a later version"));
        }
        Ok(record)
    }
}

fn path(directory: &Path) -> PathBuf {
    directory.join("record.json")
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
