//! `isopod storage du`: how much directories of the workspace hold.

use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;

use super::Verb;
use crate::printable::printable;

pub(super) fn run(verb: &Verb<'_>, path: Option<&str>) -> anyhow::Result<ExitCode> {
    let path = path.unwrap_or_default();
    let place = verb.place(path)?;
    let mut total = Weight::default();
    let entries = std::fs::read_dir(&place).with_context(|| format!("could not list {path:?}"))?;
    let mut entries = entries.collect::<Result<Vec<_>, _>>().with_context(|| format!("could not list {path:?}"))?;
    entries.sort_by_key(std::fs::DirEntry::file_name);
    for entry in entries {
        let weight = weigh(&entry.path()).with_context(|| format!("could not look at {:?}", entry.file_name()))?;
        let name = printable(&entry.file_name().to_string_lossy());
        say!("{:>14} bytes {:>8} files  {name}", weight.bytes, weight.files);
        total.bytes += weight.bytes;
        total.files += weight.files;
    }
    say!("{:>14} bytes {:>8} files  in all", total.bytes, total.files);
    Ok(ExitCode::SUCCESS)
}

#[derive(Clone, Copy, Debug, Default)]
struct Weight {
    bytes: u64,
    files: u64,
}

/// Links are not followed: they may lead out of the workspace.
fn weigh(path: &Path) -> std::io::Result<Weight> {
    let metadata = path.symlink_metadata()?;
    if !metadata.is_dir() {
        return Ok(Weight { bytes: metadata.len(), files: 1 });
    }
    let mut weight = Weight::default();
    for entry in std::fs::read_dir(path)? {
        let below = weigh(&entry?.path())?;
        weight.bytes += below.bytes;
        weight.files += below.files;
    }
    Ok(weight)
}
