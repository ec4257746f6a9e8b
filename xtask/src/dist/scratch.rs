//! A directory for files that are needed only while packages are made.

use std::fs;
use std::path::{Path, PathBuf};

pub(super) struct Scratch(PathBuf);

impl Scratch {
    pub(super) fn make(purpose: &str) -> Result<Self, String> {
        let directory = std::env::temp_dir().join(format!("isopod-{purpose}-{}", std::process::id()));
        // New, because others can write to the directory above.
        fs::create_dir(&directory).map_err(|error| format!("cannot make {}: {error}", directory.display()))?;
        Ok(Self(directory))
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.0) {
            eprintln!("cannot remove {}: {error}", self.0.display());
        }
    }
}
