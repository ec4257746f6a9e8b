//! `isopod restore`: makes a state directory of what `isopod backup` wrote.

use std::fs::{self, DirBuilder};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context as _, bail};
use isopod_node::StateRoot;

use super::DATABASE;
use super::backup::{AS_IT_IS, DESCRIPTION, Description, END, FIRST_WITH_END, FORMAT, PARTS};
use super::show::moment;
use crate::args::BackupArgs;
use crate::failure::Hint;

pub(super) fn run(state_dir: &Path, args: &BackupArgs) -> anyhow::Result<ExitCode> {
    let file = args.file.canonicalize().with_context(|| format!("could not find {}", args.file.display()))?;
    let description = description(&file)?;
    // Without a slash at its end.
    let state_dir = &state_dir.components().collect::<PathBuf>();
    check_empty(state_dir)?;
    let unfinished = unpack(&file, &description, state_dir)?;
    // What is there is complete: nobody can start a server on a part of it.
    let _ = fs::remove_dir(state_dir);
    fs::rename(&unfinished, state_dir).with_context(|| format!("could not move {}", unfinished.display()))?;
    // Gives it a tag of its own: another one may be on this machine, and its sandboxes are not this one's.
    StateRoot::open(state_dir)?;
    say!("restored {} as it was at {}", state_dir.display(), moment(description.created_at));
    say!("its sandboxes are not in the backup; start the server with: isopod serve");
    Ok(ExitCode::SUCCESS)
}

/// Unpacks next to the state directory, so that it can be moved into place. Only what a backup has is taken from the archive.
fn unpack(file: &Path, description: &Description, state_dir: &Path) -> anyhow::Result<PathBuf> {
    let mut unfinished = state_dir.as_os_str().to_owned();
    unfinished.push(".restoring");
    let unfinished = PathBuf::from(unfinished);
    let members = members(file, description)?;
    if let Some(parent) = unfinished.parent() {
        fs::create_dir_all(parent).with_context(|| format!("could not make {}", parent.display()))?;
    }
    // Left by a restore that was killed.
    match fs::remove_dir_all(&unfinished) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(error).with_context(|| format!("could not remove {}", unfinished.display()));
        }
        _ => {}
    }
    DirBuilder::new()
        .mode(0o700)
        .create(&unfinished)
        .with_context(|| format!("could not make {}", unfinished.display()))?;
    let mut tar = Command::new("tar");
    tar.args(["--extract", "--force-local", "--file"]).arg(file).args(AS_IT_IS);
    tar.args(["--same-owner", "--preserve-permissions", "--directory"]).arg(&unfinished).arg("--").args(&members);
    let status = tar.env("LC_ALL", "C").status().context("could not run tar")?;
    if !status.success() {
        let _ = fs::remove_dir_all(&unfinished);
        bail!("could not read the backup: tar failed ({status})");
    }
    // The move must not survive a crash that the contents do not.
    let synced = fs::File::open(&unfinished).and_then(|directory| Ok(rustix::fs::syncfs(directory)?));
    synced.with_context(|| format!("could not write {}", unfinished.display()))?;
    Ok(unfinished)
}

/// The parts of a backup that this one has.
fn members(file: &Path, description: &Description) -> anyhow::Result<Vec<&'static str>> {
    let listed = Command::new("tar").args(["--list", "--force-local", "--file"]).arg(file).env("LC_ALL", "C").output();
    let listed = listed.context("could not run tar")?;
    let names = String::from_utf8_lossy(&listed.stdout).into_owned();
    let has = |part: &str| names.lines().any(|name| name.split('/').next() == Some(part));
    let found: Vec<_> = std::iter::once(DATABASE).chain(PARTS.iter().copied()).filter(|part| has(part)).collect();
    let is_whole = description.format < FIRST_WITH_END || names.lines().last() == Some(END);
    // Without a name, tar would take everything.
    if !listed.status.success() || !is_whole || found.is_empty() {
        bail!("{} is damaged or has nothing in it", file.display());
    }
    Ok(found)
}

fn description(file: &Path) -> anyhow::Result<Description> {
    let mut tar = Command::new("tar");
    tar.args(["--extract", "--to-stdout", "--occurrence=1", "--force-local", "--file"]).arg(file).arg(DESCRIPTION);
    let output = tar.output().context("could not run tar")?;
    let description: Description = match serde_json::from_slice(&output.stdout) {
        Ok(description) if output.status.success() => description,
        _ => {
            return Err(Hint::new(
                format!("{} is no backup of Isopod", file.display()),
                "isopod backup FILE writes one",
            ));
        }
    };
    if description.format > FORMAT {
        let message = format!("{} was written by version {}", file.display(), description.version);
        return Err(Hint::new(message, "restore it with that version or a later one"));
    }
    Ok(description)
}

/// Nothing that is there is mixed with what comes.
fn check_empty(state_dir: &Path) -> anyhow::Result<()> {
    let is_empty = match fs::read_dir(state_dir) {
        Ok(mut entries) => entries.next().is_none(),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => true,
        Err(error) => return Err(error).with_context(|| format!("could not look into {}", state_dir.display())),
    };
    if is_empty {
        return Ok(());
    }
    Err(Hint::new(
        format!("{} is not empty", state_dir.display()),
        "name another directory with --state-dir, or remove this one with: isopod uninstall",
    ))
}
