//! The sandbox service: what a team puts between its agents and sandboxes. It knows whose each sandbox is, keeps what was
//! run in it, counts against quotas, and sees to it that nothing is left when a task ends.
//!
//! ```text
//! creating ──► running ◄──► paused
//!     │           │            │
//!     ▼           ▼            ▼
//!   error ◄───────┴────► stopped      (each with a reason, and with the time of its end)
//! ```
//! Rows are intents first: one is written before the backend is asked, and [`reconcile`] settles those whose maker died. The
//! sandboxes themselves live with a [`backend`]; on this server's own node the fleet owns them as it owns all others.

mod access;
pub mod backend;
mod config;
mod create;
mod destroy;
mod error;
mod execute;
mod files;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod git;
mod http;
mod hub;
mod metrics;
mod metrics_text;
mod pause;
mod policy;
mod reconcile;
mod resuming;
mod service;
mod settle;
mod shell;
mod tasks;

pub(crate) use access::{Access, Aim};
pub use config::ServiceConfig;
pub(crate) use create::NewServiceSandbox;
pub(crate) use error::ServiceError;
pub(crate) use execute::{Execution, StreamEvent};
pub(crate) use git::{GitAction, GitReply};
pub use http::{router, routes};
pub(crate) use hub::HubEvent;
pub use policy::CommandPolicy;
pub use reconcile::run_reconciler;
pub(crate) use service::SERVER_LABEL;
pub use service::Service;
pub(crate) use tasks::{NewTask, TaskEnd};
