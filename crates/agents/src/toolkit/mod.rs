//! The toolkit: twelve tools for an agent in the sandbox of its execution.
//!
//! A result is a JSON object with `success`, `error` if there is one, and `ok`, which means that nothing at all went
//! wrong. Lost state is always reported: a result from another sandbox than the last one has `restarted` and the old
//! id. Nothing from a caller becomes part of a shell command, except the command itself.
//!
//! The sandbox is leased to the execution, so there is only one, however many callers there are. It ends by its own
//! timeout when nobody calls any more, whatever happened to the caller.

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
