//! Processes that are saved on disk.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use isopod_checkpoint::{Criu, Saved, SavedClocks};

/// Saved processes, and the program that restores them.
#[derive(Clone, Debug)]
pub(crate) struct SavedMemory {
    pub(crate) criu: Arc<Criu>,
    pub(crate) directory: PathBuf,
    pub(crate) saved: Saved,
}

impl SavedMemory {
    pub(crate) fn open(criu: Arc<Criu>, directory: &Path) -> std::io::Result<Self> {
        Ok(Self { criu, directory: directory.to_owned(), saved: Saved::read(directory)? })
    }

    /// For a sandbox that goes on, and so shows the same boot id.
    pub(crate) fn for_resume(&self) -> ForRestore {
        ForRestore {
            last_pid: self.saved.last_pid(),
            boot_id: self.saved.boot_id.clone(),
            clocks: self.saved.clocks.clone(),
        }
    }

    /// For a copy.
    pub(crate) fn for_copy(&self) -> ForRestore {
        ForRestore { boot_id: None, ..self.for_resume() }
    }
}

/// What a sandbox needs so that saved processes can be restored in it.
#[derive(Clone, Debug, Default)]
pub(crate) struct ForRestore {
    /// Its own pids begin after this one.
    pub(crate) last_pid: Option<u32>,
    /// What it shows as its boot id, if not a new one.
    pub(crate) boot_id: Option<String>,
    /// The clocks of its processes.
    pub(crate) clocks: Option<SavedClocks>,
}
