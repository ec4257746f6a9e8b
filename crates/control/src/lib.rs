//! The core of an Isopod server: it makes decisions about sandboxes and records them, serves E2B's API, and forwards
//! traffic to sandboxes.
//!
//! Requests that name a sandbox go to the edge, all others to the API. Sandboxes run behind
//! [`isopod_wire::node::NodeApi`]. This crate knows nothing of kernels and reads no environment. Crates above it add
//! their own routes, and `isopod-server` combines them.

mod config;
mod delivery;
pub mod edge;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
pub mod http;
pub mod lifecycle;
pub mod listener;
mod membership;
mod retention;
mod start;
pub mod telemetry;
pub mod templates;
mod tls;
mod upstream;

pub use config::ServeConfig;
pub use delivery::Unacknowledged;
pub use http::App;
pub use isopod_identity::{TeamTokens, TokenKey};
pub use lifecycle::TeamLimits;
pub use listener::ConnectionLimits;
pub use retention::{is_used, run_retention};
pub use start::{Core, JournalWriter, StartError, open_app, open_connections, open_edge};
pub use templates::BuildLimits;
pub use tls::{TlsError, TlsIdentity};
