//! The files of a run: an input and an output directory on this host, and the home directory of its sandbox.
//!
//! Before a call, new input files go into the sandbox ([`push`]). Afterwards, new files in the sandbox are copied out
//! ([`pull`]). What is known of both sides is kept per sandbox ([`known`]), so only changes are transferred, and a
//! replacement sandbox gets everything.

mod facts;
mod known;
mod mime;
mod pull;
mod push;
mod rel_path;
mod rich;
mod tree;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use isopod_guest_client::GuestError;
use serde::Serialize;
use utoipa::ToSchema;

pub(super) use facts::input_paths;
pub(super) use known::Known;
pub(crate) use mime::content_type;
pub(super) use pull::present_inside;
pub(super) use pull::pull;
pub(super) use push::{Hashes, push};
pub(crate) use rel_path::RelPath;
pub(super) use rich::rich_results;
pub(crate) use tree::HostTree;
pub(in crate::sessions) use tree::NewHostFile;

use isopod_store::clock::Timestamp;
use isopod_store::{Owner, OwnerKind, StoreError, TeamId};

/// The directories of runs.
#[derive(Clone, Debug)]
pub(crate) struct Directories {
    base: PathBuf,
    /// The directories do not contain the team, because others who share them know only the id of the run.
    shared: bool,
}

/// The limits on transfers of one call.
#[derive(Clone, Copy, Debug)]
pub struct SyncCaps {
    /// The number of input files, and of files that one call produces.
    pub files: usize,
    /// The size of one file.
    pub file_bytes: u64,
    /// The total size.
    pub total_bytes: u64,
}

impl Default for SyncCaps {
    fn default() -> Self {
        Self { files: 10_000, file_bytes: 256 << 20, total_bytes: 1 << 30 }
    }
}

const MAX_DEPTH: usize = 64;

/// The directories in a directory that are not hidden. Unreadable ones are skipped.
fn named_directories(place: &Path) -> impl Iterator<Item = (String, PathBuf)> {
    let entries = std::fs::read_dir(place).into_iter().flatten().flatten();
    entries.filter_map(|entry| {
        let name = entry.file_name().into_string().ok().filter(|name| !name.starts_with('.'))?;
        entry.file_type().is_ok_and(|kind| kind.is_dir()).then(|| (name, entry.path()))
    })
}

/// Whether anything in it was written at or after this time. What cannot be checked counts as new.
fn was_written_since(place: &Path, time: Timestamp, max_depth: usize) -> bool {
    let Ok(found) = std::fs::symlink_metadata(place) else { return true };
    if found.modified().map_or(true, |modified| Timestamp::from(modified) >= time) {
        return true;
    }
    if !found.is_dir() {
        return false;
    }
    let (Ok(mut entries), Some(max_depth)) = (std::fs::read_dir(place), max_depth.checked_sub(1)) else { return true };
    entries.any(|entry| entry.map_or(true, |entry| was_written_since(&entry.path(), time, max_depth)))
}

/// The two directories of one run.
#[derive(Clone, Debug)]
pub(crate) struct RunFiles {
    pub(crate) input: Arc<HostTree>,
    pub(crate) output: Arc<HostTree>,
}

/// Something that was not moved.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = SkippedFile)]
pub(crate) struct Skipped {
    pub(crate) path: String,
    pub(crate) reason: String,
}

impl Skipped {
    pub(super) fn new(path: impl Into<String>, reason: impl Into<String>) -> Self {
        Self { path: path.into(), reason: reason.into() }
    }
}

/// Why files could not be transferred at all.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WorkspaceError {
    #[error("could not {what} {path}")]
    Host { what: &'static str, path: PathBuf, source: io::Error },
    #[error("could not {what} the sandbox's files")]
    Guest { what: &'static str, source: GuestError },
    #[error("transferring files {way} took longer than {} s", limit.as_secs())]
    Late { way: &'static str, limit: Duration },
    #[error("could not record the transferred files")]
    Store(#[from] StoreError),
}

impl Directories {
    /// `{base}/{team}/{run}`.
    pub(crate) fn of_teams(base: PathBuf) -> Self {
        Self { base, shared: false }
    }

    /// `{base}/sessions/{run}`.
    pub(crate) fn shared(base: &Path) -> Self {
        Self { base: base.join("sessions"), shared: true }
    }

    pub(crate) fn is_shared(&self) -> bool {
        self.shared
    }

    pub(crate) fn of(&self, team: &TeamId, owner: &Owner) -> PathBuf {
        let team = if self.shared { self.base.clone() } else { self.base.join(&team.0) };
        match owner.kind() {
            OwnerKind::Run => team.join(owner.id()),
            // No id starts with a dot.
            kind @ (OwnerKind::Task | OwnerKind::Execution) => team.join(format!(".{}", kind.text())).join(owner.id()),
        }
    }

    /// Directories of runs, tasks and executions in which nothing was written since then. Empty if the directories are
    /// shared.
    pub(crate) fn not_touched_since(&self, before: Timestamp) -> Vec<(TeamId, Owner, PathBuf)> {
        if self.shared {
            return Vec::new();
        }
        let mut found = Vec::new();
        // No team id starts with a dot, but the directories of libraries do.
        for (team, place) in named_directories(&self.base) {
            for kind in OwnerKind::ALL {
                let place = match kind {
                    OwnerKind::Run => place.clone(),
                    OwnerKind::Task | OwnerKind::Execution => place.join(format!(".{}", kind.text())),
                };
                for (id, directory) in named_directories(&place) {
                    let Ok(owner) = Owner::parse(kind, &id) else { continue };
                    if !was_written_since(&directory, before, MAX_DEPTH) {
                        found.push((TeamId(team.clone()), owner, directory));
                    }
                }
            }
        }
        found
    }

    /// The library of one client of a team.
    pub(crate) fn library(&self, team: &TeamId, client: &str) -> PathBuf {
        self.base.join(".library").join(&team.0).join(client)
    }

    /// The files that were promoted into the library of one client of a team.
    pub(crate) fn promoted(&self, team: &TeamId, client: &str) -> PathBuf {
        self.base.join(".promoted").join(&team.0).join(client)
    }

    /// Opens the directories of a run. Creates them if necessary.
    pub(crate) fn ensure(&self, team: &TeamId, owner: &Owner) -> Result<RunFiles, WorkspaceError> {
        let directory = self.of(team, owner);
        let open = |name: &str| {
            let path = directory.join(name);
            let opened = HostTree::ensure(&path);
            opened.map(Arc::new).map_err(|source| WorkspaceError::Host { what: "open", path, source })
        };
        Ok(RunFiles { input: open("input")?, output: open("output")? })
    }
}
