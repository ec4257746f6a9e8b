//! The sandbox service, which a team puts between its agents and sandboxes. It knows who owns each sandbox, keeps a
//! history of commands, enforces quotas, and ensures that nothing is left when a task ends.
//!
//! ```text
//! creating ──► running ◄──► paused
//!     │           │            │
//!     ▼           ▼            ▼
//!   error ◄───────┴────► stopped      (each with a reason, and with the time of its end)
//! ```
//! A row is an intent first: it is written before the backend is called, and [`reconcile`] settles those whose creator
//! died. The sandboxes themselves belong to a [`backend`]. On this server's own node, the fleet owns them like all
//! others.

mod access;
pub mod backend;
mod config;
mod create;
mod destroy;
mod error;
mod execute;
mod failed_step;
mod files;
mod fragment;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod git;
mod http;
mod hub;
mod metrics;
mod metrics_text;
mod pause;
mod policy;
mod quotas;
mod reconcile;
mod resuming;
mod service;
mod settle;
mod shell;
mod short_url;
mod tasks;

pub(crate) use access::{Access, Operation};
pub use config::ServiceConfig;
pub(crate) use create::NewServiceSandbox;
pub(crate) use error::ServiceError;
pub(crate) use execute::{Execution, StreamEvent};
pub(crate) use fragment::{Fragment, FragmentAction, FragmentFile, FragmentOutcome, FragmentRun, ScriptRun};
pub(crate) use git::{GitAction, GitReply};
pub use http::{router, routes};
pub(crate) use hub::HubEvent;
pub use policy::CommandPolicy;
pub use reconcile::run_reconciler;
pub(crate) use service::SERVER_LABEL;
pub use service::Service;
pub(crate) use tasks::{NewTask, TaskEnd};
