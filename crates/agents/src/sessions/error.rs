//! Errors of opening, using and ending a session.

use std::time::Duration;

use isopod_control::lifecycle::{ActError, CreateRefusal, SnapshotError};
use isopod_control::templates::FindError;
use isopod_store::{Owner, StoreError};

use super::map::Unreachable;
use super::workspace::WorkspaceError;

/// Why a call for a session failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SessionError {
    /// No sandbox could be created.
    #[error("no sandbox for {owner}")]
    Create { owner: Owner, source: CreateRefusal },
    /// The template of its sandbox is missing.
    #[error("the template of sessions cannot be used")]
    Template(#[source] FindError),
    /// Its sandbox exists but cannot be used.
    #[error("the sandbox of {owner} cannot be used")]
    Use { owner: Owner, source: ActError },
    /// The sandbox could not be removed yet. The removal is retried until it succeeds.
    #[error("the sandbox of {owner} could not be removed yet")]
    Kill { owner: Owner, source: ActError },
    /// The map may know a sandbox of the owner, and does not answer. The removal is retried until it does.
    #[error("the cleanup of {owner} is not finished")]
    Unfinished { owner: Owner, source: Unreachable },
    /// The sandbox could not be kept as it is, or put back.
    #[error("no checkpoint of the sandbox of {owner}")]
    Checkpoint { owner: Owner, source: SnapshotError },
    /// Its sandbox was removed while the call waited for it.
    #[error("{0} was cleaned up while this call waited")]
    Disposed(Owner),
    /// Another server that shares our Redis has the sandbox.
    #[error("{0} has its sandbox on another server")]
    Elsewhere(Owner),
    /// Another server is creating the sandbox and does not finish.
    #[error("{owner} was busy elsewhere for {waited:?}")]
    Busy { owner: Owner, waited: Duration },
    /// Its directory belongs to another team.
    #[error("{0} does not exist")]
    NotYours(Owner),
    #[error("the store failed")]
    Store(#[from] StoreError),
    #[error("the files of the run cannot be used")]
    Workspace(#[from] WorkspaceError),
    /// The task behind the call was aborted.
    #[error("the call was aborted")]
    Aborted,
}
