//! The toolkit: twelve tools that an agent works with in the sandbox of its execution.
//!
//! A result is a JSON object with `success`, `error` where there is one, and `ok`, which means that nothing went wrong at
//! all. State that a call may have relied on is never lost in silence: a result from another sandbox than the last says
//! `restarted` and the old id. Nothing that a caller says becomes a part of a shell command, but the command itself.
//!
//! The sandbox is leased to the execution, so there is one, however many call; it ends by its own timeout when nobody calls
//! any more, whatever became of the caller.

mod code;
mod config;
mod errors;
mod files;
mod lease;
mod packages;
mod sandbox;
mod schemas;
mod tool;

pub(crate) use config::ToolkitConfig;
pub(crate) use errors::ToolError;
pub(crate) use sandbox::StartedToolkit;
pub(crate) use schemas::{ToolSchema, schemas};
pub(crate) use tool::{Tool, Toolkit};
