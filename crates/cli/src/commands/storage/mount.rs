//! `isopod storage mount` and `umount`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;

use super::{Verb, explain};
use crate::args::{MountArgs, TunableArgs};
use crate::failure::Hint;

pub(super) fn mount(verb: &Verb<'_>, args: &MountArgs) -> anyhow::Result<ExitCode> {
    let (storage, choice) = verb.start(&args.tunables)?;
    let only = args.only.as_ref().map(|part| part.parse()).transpose()?;
    let path = absolute(args.path.as_deref(), &choice.base_path)?;
    let is_ours = {
        let status = storage.client().status().map_err(explain)?;
        status.mounts.iter().any(|mount| mount.path.as_ref() == Some(&path))
    };
    if !is_ours {
        make_mount_point(&path)?;
    }
    storage.client().mount(&path, only).map_err(explain)?;
    if args.only.is_none() {
        let executions = path.join(isopod_files::workspace::EXECUTIONS);
        std::fs::create_dir_all(&executions).with_context(|| format!("could not make {}", executions.display()))?;
    }
    try_writing(&path)?;
    say!("{} is mounted on {}", choice.settings.store.describe(), path.display());
    Ok(ExitCode::SUCCESS)
}

pub(super) fn unmount(verb: &Verb<'_>, path: Option<&Path>) -> anyhow::Result<ExitCode> {
    let choice = verb.choice(&TunableArgs::default());
    // Somebody who only wants to unmount needs no keys.
    let base_path = choice.map_or_else(|_| isopod_wire::compat::WORKSPACE_PATH.to_owned(), |choice| choice.base_path);
    let path = absolute(path, &base_path)?;
    verb.running().unmount(&path).map_err(explain)?;
    say!("{} is not mounted any more", path.display());
    Ok(ExitCode::SUCCESS)
}

fn absolute(path: Option<&Path>, base_path: &str) -> anyhow::Result<PathBuf> {
    let path = path.unwrap_or(Path::new(base_path));
    std::path::absolute(path).with_context(|| format!("could not use {}", path.display()))
}

/// Files below a mount would be hidden by it, and whoever wrote them would look for them in vain.
fn make_mount_point(path: &Path) -> anyhow::Result<()> {
    // A mount whose daemon is gone; the next daemon replaces it.
    let dead = rustix::io::Errno::NOTCONN.raw_os_error();
    if std::fs::symlink_metadata(path).is_err_and(|error| error.raw_os_error() == Some(dead)) {
        return Ok(());
    }
    std::fs::create_dir_all(path).with_context(|| format!("could not make {}", path.display()))?;
    let mut entries = std::fs::read_dir(path).with_context(|| format!("could not look into {}", path.display()))?;
    if entries.next().is_some() {
        return Err(Hint::new(
            format!("path mismatch: {} holds files that are not of the workspace", path.display()),
            "move them away, or choose another place with STORAGE_BASE_PATH",
        ));
    }
    Ok(())
}

fn try_writing(path: &Path) -> anyhow::Result<()> {
    let file = path.join(format!(".isopod-write-test-{}", std::process::id()));
    let written = std::fs::write(&file, b"test").and_then(|()| std::fs::read(&file));
    let _ = std::fs::remove_file(&file);
    let read = written.with_context(|| format!("{} cannot be written to", path.display()))?;
    anyhow::ensure!(read == b"test", "{} gives back something else than was written", path.display());
    Ok(())
}
