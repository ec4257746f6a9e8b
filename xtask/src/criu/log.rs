//! The output of the programs that the build runs. It is long, and nobody reads it unless one fails.

use std::fs::File;
use std::path::PathBuf;
use std::process::{Command, Stdio};

pub(super) struct Log {
    path: PathBuf,
    file: File,
}

impl Log {
    pub(super) fn create(path: PathBuf) -> Result<Self, String> {
        let file = File::create(&path).map_err(|error| format!("cannot create {}: {error}", path.display()))?;
        Ok(Self { path, file })
    }

    /// Runs a command to its end, with its output in the log. The error names the step.
    pub(super) fn run(&self, step: &str, command: &mut Command) -> Result<(), String> {
        let copy = || self.file.try_clone().map_err(|error| format!("cannot share {}: {error}", self.path.display()));
        command.stdin(Stdio::null()).stdout(copy()?).stderr(copy()?);
        match command.status() {
            Ok(status) if status.success() => Ok(()),
            Ok(_) => Err(format!("{step} failed (see {})", self.path.display())),
            Err(error) => Err(format!("{step} failed: {}: {error}", command.get_program().display())),
        }
    }
}
