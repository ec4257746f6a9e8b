//! CRIU, which writes the memory of processes to disk and restores it, for the tests of memory snapshots.
//!
//! Isopod needs a static program with a few changes (`edits.rs`), which nobody packages. So setup builds it from the source that
//! Debian has (`source.rs`), with the libraries of this machine's distribution (`apt.rs`, `build.rs`), and keeps it below the
//! cache directory. Nothing is installed: an upgrade of a library would change what the template `base` is made from.

mod apt;
mod build;
mod edit;
mod edits;
mod log;
mod source;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use sha2::{Digest, Sha256};

use crate::program::{cache_directory, is_root, output_of};
use apt::Apt;
use build::BuildRoot;
use edits::EDITS;
use log::Log;

/// Names the CRIU to use. If it is set, that one stays.
pub(crate) const VARIABLE: &str = "ISOPOD_CRIU";
/// The release that the edits are for.
pub(crate) const VERSION: &str = "4.2.1";
/// What the version of our build contains. The node asks for it.
const OURS: &str = "isopod";
const PROGRAM: &str = "criu";
/// The hash of what the program was built from.
const STAMP: &str = "stamp";

/// Returns the program if it is there.
pub(crate) fn program() -> Option<PathBuf> {
    let program = home().ok()?.join(PROGRAM);
    program.is_file().then_some(program)
}

/// Returns the archive of its source, which is beside the program.
pub(crate) fn source() -> Option<PathBuf> {
    let archive = home().ok()?.join(source::FILE);
    archive.is_file().then_some(archive)
}

/// Builds the program, unless the one that is there has the same source and edits.
pub(crate) fn ensure() -> Result<(), String> {
    let home = home()?;
    if is_current(&home) {
        return Ok(());
    }
    make(&home).map_err(|reason| format!("cannot build CRIU {VERSION}: {reason}"))
}

fn home() -> Result<PathBuf, String> {
    Ok(cache_directory()?.join("tools/criu"))
}

fn is_current(home: &Path) -> bool {
    home.join(PROGRAM).is_file() && fs::read_to_string(home.join(STAMP)).is_ok_and(|found| found == stamp())
}

fn stamp() -> String {
    let mut hash = Sha256::new();
    for part in [VERSION, source::SHA256].into_iter().chain(build::recipe()).chain(edit::texts(EDITS)) {
        hash.update(part);
        hash.update([0]);
    }
    hex::encode(hash.finalize())
}

fn make(home: &Path) -> Result<(), String> {
    if !is_root() {
        return Err("only root can".to_owned());
    }
    eprintln!("building CRIU {VERSION} into {}, which takes a minute", home.display());
    let work = home.with_file_name(format!("criu.{}", std::process::id()));
    let made = make_in(&work, home).and_then(|new| replace(home, &new));
    let _ = fs::remove_dir_all(&work);
    made
}

/// Returns the new content of the home.
fn make_in(work: &Path, home: &Path) -> Result<PathBuf, String> {
    let new = work.join("new");
    create_directory(&new)?;
    let log = Log::create(home.with_extension("log"))?;
    let apt = Apt::new(&work.join("apt"), &log)?;
    let archive = source::fetch(&apt, home, &new)?;
    let root = BuildRoot::new(work, &apt, &log)?;
    root.unpack(&archive)?;
    edit::apply_all(EDITS, root.source())?;
    let built = root.build()?;
    copy(&built, &new.join(PROGRAM))?;
    check(&new.join(PROGRAM))?;
    write(&new.join(STAMP), &stamp())?;
    Ok(new)
}

/// Fails unless the program runs and is ours.
fn check(program: &Path) -> Result<(), String> {
    let version = output_of(Command::new(program).arg("--version"))?;
    if version.contains(OURS) {
        Ok(())
    } else {
        Err(format!("the new program has another version: {}", version.trim()))
    }
}

/// Puts the new directory in the place of the old one.
fn replace(home: &Path, new: &Path) -> Result<(), String> {
    let _ = fs::remove_dir_all(home);
    fs::rename(new, home).map_err(|error| format!("cannot create {}: {error}", home.display()))
}

fn create_directory(directory: &Path) -> Result<(), String> {
    fs::create_dir_all(directory).map_err(|error| format!("cannot create {}: {error}", directory.display()))
}

fn write(file: &Path, text: &str) -> Result<(), String> {
    fs::write(file, text).map_err(|error| format!("cannot write {}: {error}", file.display()))
}

fn copy(from: &Path, to: &Path) -> Result<(), String> {
    fs::copy(from, to).map_err(|error| format!("cannot copy {}: {error}", from.display())).map(drop)
}
