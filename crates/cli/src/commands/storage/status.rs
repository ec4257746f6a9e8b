//! `isopod storage status`: what is mounted, and what the bucket does not have yet.

use std::process::ExitCode;

use super::{Verb, explain};
use crate::printable::printable;
use crate::say::print_json_pretty;

pub(super) fn run(verb: &Verb<'_>, json: bool) -> anyhow::Result<ExitCode> {
    let status = verb.running().status().map_err(explain)?;
    if json {
        print_json_pretty(&status);
        return Ok(ExitCode::SUCCESS);
    }
    say!("store    {}", status.store.as_deref().unwrap_or("none"));
    say!("daemon   process {}, kept by process {}", status.pid, status.supervisor);
    for client in &status.clients {
        say!("used by  {}", printable(client));
    }
    for mount in &status.mounts {
        let part = mount.subtree.as_ref().map_or("everything".to_owned(), ToString::to_string);
        match (&mount.path, &mount.owner) {
            (Some(path), _) => say!("mount    {} ({part})", printable(&path.to_string_lossy())),
            (None, Some(owner)) => say!("mount    in sandbox execution {owner} ({part})"),
            (None, None) => {}
        }
    }
    let sync = &status.sync;
    let since = sync.oldest.map(|age| format!(", the oldest since {:.1} s", age.as_secs_f64())).unwrap_or_default();
    say!("waiting  {} uploads with {} bytes, {} deletions{since}", sync.uploads, sync.bytes, sync.deletions);
    if let Some(error) = &sync.error {
        say!("trouble  {}", printable(error));
    }
    Ok(ExitCode::SUCCESS)
}
