//! The files of a run: a directory with its input and one with its output on this host, and the home of its sandbox.
//!
//! Before a call what is new in the input goes into the sandbox ([`push`]); afterwards what is new inside comes out
//! ([`pull`]). What is known of both sides is kept per sandbox ([`known`]), so only what changed is moved, and a sandbox
//! that takes another's place gets everything.

mod artifact;
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

use isopod_client::GuestError;
use serde::Serialize;

pub(crate) use artifact::ArtifactInfo;
pub(super) use facts::input_paths;
pub(crate) use facts::{FileFacts, FileHash, FileRecord, Side};
pub(super) use known::Known;
pub(crate) use mime::content_type;
pub(super) use pull::pull;
pub(super) use push::{Hashes, push};
pub(crate) use rel_path::RelPath;
pub(super) use rich::rich_results;
pub(crate) use tree::HostTree;

use super::owner::{Owner, OwnerKind};
use crate::store::{StoreError, TeamId};

/// Where runs have their directories.
#[derive(Clone, Debug)]
pub(crate) struct Directories {
    base: PathBuf,
    /// Directories carry no team: others who share them know the id of the run alone.
    shared: bool,
}

/// How much is moved for one call.
#[derive(Clone, Copy, Debug)]
pub struct SyncCaps {
    /// Files of an input, and files that come out of one call.
    pub files: usize,
    /// Bytes of one file.
    pub file_bytes: u64,
    /// Bytes in all.
    pub total_bytes: u64,
}

impl Default for SyncCaps {
    fn default() -> Self {
        Self { files: 10_000, file_bytes: 256 << 20, total_bytes: 1 << 30 }
    }
}

/// The two directories of one run.
#[derive(Clone, Debug)]
pub(crate) struct RunFiles {
    pub(crate) input: Arc<HostTree>,
    pub(crate) output: Arc<HostTree>,
}

/// Something that was not moved.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Skipped {
    pub(crate) path: String,
    pub(crate) reason: String,
}

impl Skipped {
    pub(super) fn new(path: impl Into<String>, reason: impl Into<String>) -> Self {
        Self { path: path.into(), reason: reason.into() }
    }
}

/// Why files could not be moved at all.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WorkspaceError {
    #[error("could not {what} {path}")]
    Host { what: &'static str, path: PathBuf, source: io::Error },
    #[error("could not {what} the sandbox's files")]
    Guest { what: &'static str, source: GuestError },
    #[error("could not record what was moved")]
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
            // No id begins with a dot.
            kind @ (OwnerKind::Task | OwnerKind::Execution) => team.join(format!(".{}", kind.text())).join(owner.id()),
        }
    }

    /// The files that a team keeps for all of its runs; with a client's name, those of this client.
    pub(crate) fn library(&self, team: &TeamId, client: &str) -> PathBuf {
        self.base.join(".library").join(&team.0).join(client)
    }

    /// Opens the directories of a run, and makes them if need be.
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
