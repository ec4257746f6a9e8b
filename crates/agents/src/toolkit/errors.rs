//! Why a tool did not do its work. Most become a result with `success: false`; a refusal to make a sandbox is an answer
//! of the API, with a status that clients know to wait or to give up by.

use std::time::Duration;

use isopod_control::files::FileError;
use isopod_control::lifecycle::{ActError, CreateRefusal};
use isopod_control::templates::FindError;
use isopod_guest_client::GuestError;
use isopod_store::StoreError;

#[derive(Debug, thiserror::Error)]
pub(crate) enum ToolError {
    /// The arguments are not those of the tool.
    #[error("{0}")]
    Arguments(String),
    /// There was a sandbox, it is gone, and the configuration does not allow another.
    #[error("the sandbox is gone, and auto_reinitialize is off; restart_sandbox makes a new one")]
    Gone,
    #[error("the sandbox stopped while it was asked")]
    Stopped,
    #[error("the sandbox did not finish within {} s", .0.as_secs())]
    Late(Duration),
    #[error("the sandbox did not do it")]
    Guest(#[from] GuestError),
    #[error("the workspace did not give or take the file")]
    Files(#[from] FileError),
    #[error("the toolkit's template cannot be used")]
    Template(#[from] FindError),
    #[error("there is no sandbox for the execution")]
    Create(#[from] CreateRefusal),
    #[error("the sandbox could not be ended")]
    Act(#[from] ActError),
    #[error("the store failed")]
    Store(#[from] StoreError),
}

impl ToolError {
    /// In words for an agent, with the cause.
    pub(crate) fn told(&self) -> String {
        isopod_wire::error_chain(self)
    }
}
