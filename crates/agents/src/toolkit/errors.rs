//! Why a tool failed. Most errors become a result with `success: false`. If a sandbox cannot be created, the API
//! returns an error with a status that tells clients whether to retry.

use std::time::Duration;

use isopod_control::lifecycle::{ActError, CreateRefusal};
use isopod_control::templates::FindError;
use isopod_files::FileError;
use isopod_guest_client::GuestError;
use isopod_store::StoreError;

#[derive(Debug, thiserror::Error)]
pub(crate) enum ToolError {
    /// The arguments are not valid for the tool.
    #[error("{0}")]
    Arguments(String),
    /// There was a sandbox, it is gone, and the configuration does not allow another one.
    #[error("the sandbox is gone, and auto_reinitialize is off; restart_sandbox creates a new one")]
    Gone,
    /// The team's other calls use all memory for output.
    #[error("your team's calls have too much output in memory; try again when some of them have ended")]
    Busy,
    #[error("the sandbox stopped during the call")]
    Stopped,
    #[error("the sandbox did not finish within {} s", .0.as_secs())]
    Late(Duration),
    #[error("the call to the sandbox failed")]
    Guest(#[from] GuestError),
    #[error("could not access the file in the workspace")]
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
    /// A message for an agent, with the cause.
    pub(crate) fn message(&self) -> String {
        isopod_wire::error_chain(self)
    }
}
