//! Runs `mkfs.btrfs` on a file.

use std::io;
use std::path::Path;
use std::process::{Command, Output};

use super::error::NoLimit;
use super::lock::SetupLock;

/// Formats `file`. One copy of the metadata is enough, because the file system below protects the data on the disk.
///
/// The program gets the lock as its standard input, from which it reads nothing. See [`SetupLock::share`].
pub(super) fn run(program: &Path, file: &Path, is_mixed: bool, lock: &SetupLock) -> Result<(), NoLimit> {
    match output(program, file, is_mixed, lock) {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(NoLimit::MkfsFailed(last_words(&output))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Err(NoLimit::NoMkfs),
        Err(error) => Err(NoLimit::MkfsFailed(error.to_string())),
    }
}

/// A bare name is looked up in PATH and then in Debian's directory for it, which is not in the PATH of an ordinary
/// user.
fn output(program: &Path, file: &Path, is_mixed: bool, lock: &SetupLock) -> io::Result<Output> {
    match command(program, file, is_mixed).stdin(lock.share()?).output() {
        Err(error) if error.kind() == io::ErrorKind::NotFound && program.components().count() == 1 => {
            command(&Path::new("/usr/sbin").join(program), file, is_mixed).stdin(lock.share()?).output()
        }
        other => other,
    }
}

fn command(program: &Path, file: &Path, is_mixed: bool) -> Command {
    let mut command = Command::new(program);
    command.args(["--quiet", "--force", "--nodiscard", "--data", "single", "--metadata", "single"]);
    command.args(is_mixed.then_some("--mixed"));
    command.args(["--label", "isopod"]).arg(file);
    command
}

fn last_words(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stderr);
    let line = text.lines().rev().find(|line| !line.trim().is_empty());
    line.map_or_else(|| output.status.to_string(), |line| line.chars().take(200).collect())
}
