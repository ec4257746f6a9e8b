//! Processes that are saved on disk.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::{Criu, Saved, SavedClocks};

/// Saved processes, and the program that restores them.
#[derive(Clone, Debug)]
pub struct SavedMemory {
    pub criu: Arc<Criu>,
    pub directory: PathBuf,
    pub saved: Saved,
}

impl SavedMemory {
    pub fn open(criu: Arc<Criu>, directory: &Path) -> std::io::Result<Self> {
        Ok(Self { criu, directory: directory.to_owned(), saved: Saved::read(directory)? })
    }

    /// For a sandbox that goes on, and so shows the same boot id.
    pub fn for_resume(&self) -> ForRestore {
        ForRestore {
            last_pid: self.saved.last_pid(),
            boot_id: self.saved.boot_id.clone(),
            clocks: self.saved.clocks.clone(),
        }
    }

    /// For a copy.
    pub fn for_copy(&self) -> ForRestore {
        ForRestore { boot_id: None, ..self.for_resume() }
    }
}

/// What a sandbox needs so that saved processes can be restored in it.
#[derive(Clone, Debug, Default)]
pub struct ForRestore {
    /// Its own pids begin after this one.
    pub last_pid: Option<u32>,
    /// What it shows as its boot id, if not a new one.
    pub boot_id: Option<String>,
    /// The clocks of its processes.
    pub clocks: Option<SavedClocks>,
}
