//! Copies files out of the sandbox: what is new or changed in its home directory goes into the run's output.

use std::collections::HashSet;
use std::io;
use std::sync::Arc;

use futures::{StreamExt as _, stream};
use isopod_files::Offloaded;
use isopod_guest_client::GuestError;
use isopod_guest_client::guest::{Guest, Tree, TreeEntry};
use isopod_store::clock::Timestamp;
use isopod_store::{ArtifactInfo, FileFacts, FileHash};

use super::known::{Known, Seen};
use super::mime::content_type;
use super::push::inside;
use super::rel_path::RelPath;
use super::tree::HostTree;
use super::{RunFiles, Skipped, SyncCaps, WorkspaceError};
use crate::sessions::tool::SyncReport;

/// How many files are fetched at the same time.
const MAX_CONCURRENT: usize = 8;
/// How many entries of a home directory are listed for each file that may be transferred.
const LIST_FACTOR: usize = 2;

/// The result of a pull.
#[derive(Debug, Default)]
pub(in crate::sessions) struct Pulled {
    pub(in crate::sessions) artifacts: Vec<ArtifactInfo>,
}

/// Fetches what has changed.
pub(in crate::sessions) async fn pull(
    guest: &Guest,
    files: &RunFiles,
    known: &mut Known,
    caps: SyncCaps,
    agent: Option<&str>,
    report: &mut SyncReport,
) -> Result<Pulled, WorkspaceError> {
    let home = list_home(guest, caps, &[]).await?;
    forget_gone(known, &home);
    let wanted = choose(known, home, caps, report);
    let fetches = wanted.into_iter().map(|(path, facts)| {
        let (guest, output) = (guest.clone(), Arc::clone(&files.output));
        async move {
            let fetched = fetch(&guest, output, &path, caps.file_bytes).await;
            (path, facts, fetched)
        }
    });
    let mut fetched: Vec<_> = stream::iter(fetches).buffer_unordered(MAX_CONCURRENT).collect().await;
    fetched.sort_unstable_by(|a, b| a.0.cmp(&b.0));
    let mut pulled = Pulled::default();
    for (path, facts, fetched) in fetched {
        settle(known, &path, facts, fetched, agent, report, &mut pulled)?;
    }
    Ok(pulled)
}

/// Which of these paths exist in the home directory.
pub(in crate::sessions) async fn present_inside(
    guest: &Guest,
    paths: &[String],
    caps: SyncCaps,
) -> Result<HashSet<String>, WorkspaceError> {
    if paths.is_empty() {
        return Ok(HashSet::new());
    }
    let only: Vec<&str> = paths.iter().map(String::as_str).collect();
    Ok(list_home(guest, caps, &only).await?.entries.into_iter().map(|entry| entry.path).collect())
}

/// Lists the home directory, or only these paths in it.
pub(super) async fn list_home(guest: &Guest, caps: SyncCaps, only: &[&str]) -> Result<Tree, WorkspaceError> {
    let max_entries = caps.files.saturating_mul(LIST_FACTOR);
    guest.tree_of("~", max_entries, only).await.map_err(|source| WorkspaceError::Guest { what: "list", source })
}

pub(super) fn facts_of(entry: &TreeEntry) -> FileFacts {
    FileFacts { size: entry.size, modified: entry.modified, changed: entry.changed, inode: entry.inode }
}

fn forget_gone(known: &mut Known, home: &Tree) {
    if home.truncated {
        return;
    }
    let present: HashSet<&str> = home.entries.iter().map(|entry| entry.path.as_str()).collect();
    let inside = known.inside.iter().flat_map(|inside| inside.keys());
    let gone: Vec<String> = inside.filter(|path| !present.contains(path.as_str())).cloned().collect();
    for path in gone {
        known.inside_is_gone(&path);
    }
}

/// Selects the changed files that may be fetched. Others are reported once.
fn choose(known: &mut Known, home: Tree, caps: SyncCaps, report: &mut SyncReport) -> Vec<(RelPath, FileFacts)> {
    let mut wanted = Vec::new();
    let mut total: u64 = 0;
    report.skipped.extend(home.unreadable.iter().map(|path| Skipped::new(path.clone(), "cannot be read")));
    if home.truncated {
        report.skipped.push(Skipped::new("…", format!("there are more than {} files", home.entries.len())));
    }
    for entry in home.entries {
        let facts = facts_of(&entry);
        let before = known.inside.as_ref().and_then(|inside| inside.get(&entry.path));
        if before.is_some_and(|before| before.facts == facts) {
            continue;
        }
        let refusal = match RelPath::parse(&entry.path) {
            Err(error) => error.to_string(),
            Ok(_) if !entry.is_file => "it is a link or not a regular file".to_owned(),
            Ok(_) if facts.size > caps.file_bytes => {
                format!("it has {} bytes, but the limit is {}", facts.size, caps.file_bytes)
            }
            Ok(_) if wanted.len() == caps.files => format!("more than {} files are new", caps.files),
            Ok(_) if total.saturating_add(facts.size) > caps.total_bytes => {
                format!("more than {} bytes are new", caps.total_bytes)
            }
            Ok(path) => {
                total += facts.size;
                wanted.push((path, facts));
                continue;
            }
        };
        known.inside_is(&entry.path, Seen { facts, hash: None, recheck: false });
        report.skipped.push(Skipped::new(entry.path, refusal));
    }
    wanted
}

/// Why a file was not fetched.
#[derive(Debug, thiserror::Error)]
enum FetchError {
    #[error("{0}")]
    Guest(GuestError),
    #[error("could not be written: {0}")]
    Host(io::Error),
}

async fn fetch(
    guest: &Guest,
    output: Arc<HostTree>,
    path: &RelPath,
    max_bytes: u64,
) -> Result<(FileFacts, FileHash), FetchError> {
    let mut download = guest.read_file(&inside(path)).await.map_err(FetchError::Guest)?;
    let target = path.clone();
    let mut file = Offloaded::begin(move || output.begin(&target, false)).await.map_err(FetchError::Host)?;
    let mut taken: u64 = 0;
    while let Some(piece) = download.next().await.map_err(FetchError::Guest)? {
        taken += piece.len() as u64;
        // It has grown since it was listed.
        if taken > max_bytes {
            return Err(FetchError::Host(io::ErrorKind::FileTooLarge.into()));
        }
        file = file.write(piece).await.map_err(FetchError::Host)?;
    }
    file.finish().await.map_err(FetchError::Host)
}

/// Records the result of fetching one file. An unreachable sandbox ends the pull.
fn settle(
    known: &mut Known,
    path: &RelPath,
    facts: FileFacts,
    fetched: Result<(FileFacts, FileHash), FetchError>,
    agent: Option<&str>,
    report: &mut SyncReport,
    pulled: &mut Pulled,
) -> Result<(), WorkspaceError> {
    let (written, hash) = match fetched {
        Ok(fetched) => fetched,
        // It was removed after it was listed.
        Err(FetchError::Guest(error)) if error.is_not_found() => return Ok(()),
        Err(FetchError::Guest(source @ GuestError::Transport(_))) => {
            return Err(WorkspaceError::Guest { what: "fetch", source });
        }
        Err(error) => {
            report.skipped.push(Skipped::new(path.as_str(), format!("could not be fetched: {error}")));
            return Ok(());
        }
    };
    let before = known.inside.as_ref().and_then(|inside| inside.get(path.as_str())).and_then(|before| before.hash);
    known.inside_is(path.as_str(), Seen { facts, hash: Some(hash), recheck: false });
    report.downloaded += 1;
    // If it was written again with the same contents, nothing is new.
    if before != Some(hash) {
        pulled.artifacts.push(ArtifactInfo {
            filename: path.as_str().to_owned(),
            agent_id: agent.map(str::to_owned),
            generated_at: Timestamp::now(),
            size_bytes: written.size,
            content_type: content_type(path.as_str()).to_owned(),
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(path: &str, size: u64) -> TreeEntry {
        TreeEntry { is_file: true, path: path.to_owned(), size, modified: 1, changed: 1, inode: 1 }
    }

    fn home(entries: Vec<TreeEntry>) -> Tree {
        Tree { entries, truncated: false, unreadable: Vec::new() }
    }

    /// The names come from a sandbox, so they can be anything.
    #[test]
    fn what_leads_out_or_exceeds_a_cap_is_told_once_and_not_fetched() {
        let caps = SyncCaps { files: 3, file_bytes: 10, total_bytes: 15 };
        let link = TreeEntry { is_file: false, ..entry("link", 1) };
        let paths = || {
            let bad = ["../out", "/etc/passwd", "a/../../x", ""].map(|path| entry(path, 1));
            let sized = [entry("big", 11), entry("a", 8), entry("b", 8), entry("c", 1), entry("d", 1), entry("e", 1)];
            home(bad.into_iter().chain(sized).chain([link.clone()]).collect())
        };
        let (mut known, mut report) = (Known::default(), SyncReport::default());
        let wanted = choose(&mut known, paths(), caps, &mut report);
        let names: Vec<&str> = wanted.iter().map(|(path, _)| path.as_str()).collect();
        assert_eq!(names, ["a", "c", "d"]);
        assert_eq!(report.skipped.len(), 8, "{report:?}");
        let mut again = SyncReport::default();
        choose(&mut known, paths(), caps, &mut again);
        assert!(again.skipped.is_empty(), "{again:?}");
    }

    #[test]
    fn what_is_gone_is_forgotten_and_told_as_new_when_it_comes_back() {
        let (mut known, mut report) = (Known::default(), SyncReport::default());
        let seen = Seen { facts: facts_of(&entry("a", 1)), hash: None, recheck: false };
        known.inside_is("a", seen);
        assert!(choose(&mut known, home(vec![entry("a", 1)]), SyncCaps::default(), &mut report).is_empty());
        forget_gone(&mut known, &home(Vec::new()));
        assert_eq!(choose(&mut known, home(vec![entry("a", 1)]), SyncCaps::default(), &mut report).len(), 1);
    }
}
