//! `isopod storage ls`: a directory of the workspace.

use std::process::ExitCode;
use std::time::SystemTime;

use anyhow::Context;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::Verb;
use crate::printable::printable;

pub(super) fn run(verb: &Verb<'_>, path: Option<&str>) -> anyhow::Result<ExitCode> {
    let path = path.unwrap_or_default();
    let place = verb.place(path)?;
    let entries = std::fs::read_dir(&place).with_context(|| format!("could not list {path:?}"))?;
    let mut entries = entries.collect::<Result<Vec<_>, _>>().with_context(|| format!("could not list {path:?}"))?;
    entries.sort_by_key(std::fs::DirEntry::file_name);
    for entry in entries {
        let metadata = entry.metadata().with_context(|| format!("could not look at {:?}", entry.file_name()))?;
        let slash = if metadata.is_dir() { "/" } else { "" };
        let changed = OffsetDateTime::from(metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH));
        let changed = changed.replace_nanosecond(0).unwrap_or(changed).format(&Rfc3339).unwrap_or_default();
        let name = printable(&entry.file_name().to_string_lossy());
        say!("{:>12}  {changed}  {name}{slash}", metadata.len());
    }
    Ok(ExitCode::SUCCESS)
}
