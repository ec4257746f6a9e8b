//! What the host knows about saved processes.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use isopod_isolation::launch::SandboxFilters;
use isopod_wire::checkpoint::Connection;
use serde::{Deserialize, Serialize};

use crate::clocks::SavedClocks;

/// The directory of saved processes, in that of an execution.
pub const MEMORY: &str = "memory";
const DESCRIPTION: &str = "saved.json";
pub(crate) const STATE: &str = "state.json";
pub(crate) const FILES: &str = "files";
pub(crate) const IMAGES: &str = "images";

/// Increased when older programs could not read it.
const VERSION: u32 = 1;
/// Guests, CRIU and their helpers take fewer pids.
const PID_ROOM: u32 = 500;
/// Where the pids of a restored sandbox may begin, in the order in which they are tried.
const FIRST_PIDS: [u32; 6] = [32_000, 28_000, 24_000, 20_000, 16_000, 300];

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Saved {
    version: u32,
    /// The pid of the root.
    pub(crate) root: u32,
    /// The pids of all processes and threads, which they have again after a restore.
    pub(crate) pids: Vec<u32>,
    /// Those that had been stopped before.
    pub(crate) stopped: Vec<u32>,
    pub(crate) connections: Vec<Connection>,
    /// What the sandbox showed as its boot id.
    pub boot_id: Option<String>,
    /// Earlier versions did not save them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clocks: Option<SavedClocks>,
    /// Each process has one of these. Earlier versions did not save them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) filters: Option<SandboxFilters>,
}

impl Saved {
    pub(crate) fn new(root: u32, connections: Vec<Connection>) -> Self {
        Self {
            version: VERSION,
            root,
            pids: Vec::new(),
            stopped: Vec::new(),
            connections,
            boot_id: None,
            clocks: None,
            filters: None,
        }
    }

    /// Written last: without it, nothing is saved.
    pub(crate) fn write(&self, memory: &Path) -> io::Result<()> {
        let mut file = File::options().write(true).create_new(true).mode(0o600).open(memory.join(DESCRIPTION))?;
        file.write_all(&serde_json::to_vec(self)?)
    }

    /// Waits until everything in a directory of saved processes is on the disk.
    pub fn sync(memory: &Path) -> io::Result<()> {
        Ok(rustix::fs::syncfs(File::open(memory)?)?)
    }

    /// Reads what is in a directory of saved processes.
    pub fn read(memory: &Path) -> io::Result<Self> {
        let saved: Self = serde_json::from_slice(&std::fs::read(memory.join(DESCRIPTION))?)?;
        if saved.version > VERSION {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "it was saved by a later version"));
        }
        Ok(saved)
    }

    /// After which pid those of a new sandbox can begin, so that they leave the saved ones free.
    pub fn last_pid(&self) -> Option<u32> {
        let is_free = |first: &u32| !self.pids.iter().any(|pid| (*first..first + PID_ROOM).contains(pid));
        FIRST_PIDS.into_iter().find(is_free)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pids_begin_where_none_is_taken() {
        let with = |pids: &[u32]| Saved { pids: pids.to_vec(), ..Saved::new(4, Vec::new()) }.last_pid();
        assert_eq!(with(&[4, 7, 300]), Some(32_000));
        assert_eq!(with(&[4, 32_010]), Some(28_000));
        assert_eq!(with(&[32_010, 28_499, 24_000, 20_001, 16_002]), Some(300));
        assert_eq!(with(&[32_010, 28_499, 24_000, 20_001, 16_002, 301]), None);
    }
}
