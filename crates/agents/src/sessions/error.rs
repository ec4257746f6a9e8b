//! Why a session cannot be had, used or ended.

use std::time::Duration;

use isopod_control::lifecycle::{ActError, CreateRefusal};
use isopod_control::templates::FindError;
use isopod_store::{Owner, StoreError};

use super::workspace::WorkspaceError;

/// Why a call of a session's owner came to nothing.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SessionError {
    /// No sandbox could be made.
    #[error("no sandbox for {owner}")]
    Create { owner: Owner, source: CreateRefusal },
    /// What its sandbox would be made of is not there.
    #[error("the template of sessions cannot be used")]
    Template(#[source] FindError),
    /// There is one, and it cannot be used.
    #[error("the sandbox of {owner} cannot be used")]
    Use { owner: Owner, source: ActError },
    /// The sandbox could not be removed yet; it is tried again until it is.
    #[error("the sandbox of {owner} could not be removed yet")]
    Kill { owner: Owner, source: ActError },
    /// Its sandbox was removed while the call waited for it.
    #[error("{0} was cleaned up while this call waited")]
    Disposed(Owner),
    /// Another server that shares our Redis has the sandbox.
    #[error("{0} has its sandbox on another server")]
    Elsewhere(Owner),
    /// Another server is making it and does not finish.
    #[error("{owner} was busy elsewhere for {waited:?}")]
    Busy { owner: Owner, waited: Duration },
    /// Its directory is another team's.
    #[error("{0} does not exist")]
    NotYours(Owner),
    #[error("the store failed")]
    Store(#[from] StoreError),
    #[error("the files of the run cannot be used")]
    Workspace(#[from] WorkspaceError),
    /// The task that does the work did not end as it should.
    #[error("the call was not finished")]
    Aborted,
}
