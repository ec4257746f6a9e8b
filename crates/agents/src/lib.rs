//! Features for agents on top of sandboxes: one sandbox per run with its files ([`sessions`]), runs of workflows
//! ([`runs`]), and the files and tools of an execution ([`toolkit`]).

mod agents;
mod config;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod http;
mod runs;
mod sessions;
mod toolkit;

pub use agents::{Agents, OpenError};
pub use config::{AgentsConfig, RunsConfig};
pub use http::routes;
pub use sessions::{SearchSettings, SessionSettings, SyncCaps};
