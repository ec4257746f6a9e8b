//! `isopod uninstall`: removes everything that Isopod has made on this machine.

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;
use isopod_node::{StateRoot, list_kept, remove_everything};
use isopod_storage::{ClientError, StorageClient};

use super::storage;
use crate::args::UninstallArgs;

pub(super) fn run(state_dir: &Path, args: &UninstallArgs) -> anyhow::Result<ExitCode> {
    if !state_dir.exists() {
        say!("there is nothing in {}", state_dir.display());
        return Ok(ExitCode::SUCCESS);
    }
    let state = StateRoot::open(state_dir)?;
    if !args.yes && !confirmed(&state)? {
        say!("nothing was removed; answer y, or add --yes");
        return Ok(ExitCode::FAILURE);
    }
    let path = state.path().to_owned();
    super::tls::forget_trust(&path);
    remove_everything(state, || end_storage(&path)).context("could not remove everything")?;
    say!("removed {} and all sandboxes in it", state_dir.display());
    Ok(ExitCode::SUCCESS)
}

/// The workspace is mounted in there: nothing of the bucket may be taken for a file of ours.
fn end_storage(state_dir: &Path) -> std::io::Result<()> {
    match StorageClient::new(storage::directory(state_dir)).stop() {
        Ok(()) | Err(ClientError::NotRunning) => {}
        Err(error) => return Err(std::io::Error::other(error)),
    }
    let mounts = std::fs::read_to_string("/proc/self/mountinfo")?;
    let below = |line: &str| line.split(' ').nth(4).is_some_and(|path| Path::new(path).starts_with(state_dir));
    for line in mounts.lines().filter(|line| below(line) && line.contains(" - fuse.isopod ")) {
        let path = line.split(' ').nth(4).unwrap_or_default();
        isopod_storage::unmount(Path::new(path)).map_err(std::io::Error::other)?;
    }
    Ok(())
}

/// Sandboxes go on when the server is down, so whoever answers is told how many there are.
fn confirmed(state: &StateRoot) -> anyhow::Result<bool> {
    let sandboxes = match list_kept(state) {
        Ok(kept) => {
            let sandboxes = match kept.sandboxes.len() {
                0 => "No sandbox runs or is paused.".to_owned(),
                1 => "1 sandbox runs or is paused; it ends and its files are lost.".to_owned(),
                count => format!("{count} sandboxes run or are paused; they end and their files are lost."),
            };
            match kept.snapshots.len() {
                0 => sandboxes,
                1 => format!("{sandboxes} 1 snapshot is lost too."),
                count => format!("{sandboxes} {count} snapshots are lost too."),
            }
        }
        Err(error) => format!("Some sandboxes may run or be paused ({error}); they end and their files are lost."),
    };
    eprint!("{sandboxes} This removes {} with all templates. Go on? [y/N] ", state.path().display());
    std::io::stderr().flush()?;
    let mut answer = String::new();
    std::io::stdin().read_line(&mut answer)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}
