//! `isopod storage status`: what is mounted, and what the bucket does not have yet.

use std::process::ExitCode;

use super::{Verb, explain};

pub(super) fn run(verb: &Verb<'_>, json: bool) -> anyhow::Result<ExitCode> {
    let status = verb.running().status().map_err(explain)?;
    if json {
        say!("{}", serde_json::to_string_pretty(&status)?);
        return Ok(ExitCode::SUCCESS);
    }
    say!("store    {}", status.store.as_deref().unwrap_or("none"));
    say!("daemon   process {}", status.pid);
    for mount in &status.mounts {
        let part = mount.subtree.as_ref().map_or("everything".to_owned(), ToString::to_string);
        match (&mount.path, &mount.owner) {
            (Some(path), _) => say!("mount    {} ({part})", path.display()),
            (None, Some(owner)) => say!("mount    in sandbox execution {owner} ({part})"),
            (None, None) => {}
        }
    }
    let sync = &status.sync;
    let since = sync.oldest.map(|age| format!(", the oldest since {:.1} s", age.as_secs_f64())).unwrap_or_default();
    say!("waiting  {} uploads with {} bytes, {} deletions{since}", sync.uploads, sync.bytes, sync.deletions);
    if let Some(error) = &sync.error {
        say!("trouble  {error}");
    }
    Ok(ExitCode::SUCCESS)
}
