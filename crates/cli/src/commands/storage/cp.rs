//! `isopod storage cp`: files and directories into the workspace and out of it.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};

use super::Verb;

/// What stands before a path of the workspace.
const STORE: &str = "store:";

pub(super) fn run(verb: &Verb<'_>, from: &str, to: &str) -> anyhow::Result<ExitCode> {
    if !from.starts_with(STORE) && !to.starts_with(STORE) {
        bail!("neither place is in the workspace: write {STORE}executions/e1/file");
    }
    let (source, target) = (place(verb, from)?, place(verb, to)?);
    let target = match source.file_name() {
        Some(name) if target.is_dir() => target.join(name),
        _ => target,
    };
    let copied = copy(&source, &target).with_context(|| format!("could not copy {from} to {to}"))?;
    say!("copied {copied} files");
    Ok(ExitCode::SUCCESS)
}

fn place(verb: &Verb<'_>, text: &str) -> anyhow::Result<PathBuf> {
    match text.strip_prefix(STORE) {
        Some(path) => verb.place(path),
        None => Ok(PathBuf::from(text)),
    }
}

/// Links are copied as links: following one that a sandbox made would copy files of this host.
fn copy(from: &Path, to: &Path) -> std::io::Result<u64> {
    let metadata = from.symlink_metadata()?;
    if metadata.is_symlink() {
        std::os::unix::fs::symlink(std::fs::read_link(from)?, to)?;
        return Ok(1);
    }
    if !metadata.is_dir() {
        if let Some(parent) = to.parent().filter(|parent| !parent.as_os_str().is_empty()) {
            std::fs::create_dir_all(parent)?;
        }
        std::fs::copy(from, to)?;
        return Ok(1);
    }
    std::fs::create_dir_all(to)?;
    let mut copied = 0;
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        copied += copy(&entry.path(), &to.join(entry.file_name()))?;
    }
    Ok(copied)
}
