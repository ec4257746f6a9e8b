//! The core of an Isopod server: it decides about sandboxes and records what it decides, speaks E2B's API, and is the
//! proxy for traffic to sandboxes.
//!
//! Requests that name a sandbox go to the edge, the rest is API. What runs sandboxes is behind
//! [`isopod_wire::node::NodeApi`]; this crate knows nothing of kernels and reads no environment. Crates above it add routes
//! of their own, and `isopod-server` puts all of them together.

mod config;
mod delivery;
pub mod edge;
pub mod files;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
pub mod http;
pub mod lifecycle;
pub mod listener;
mod shares;
mod start;
pub mod telemetry;
pub mod templates;
mod tls;
mod upstream;
mod webhooks;
pub mod workspace;

pub use config::ServeConfig;
pub use delivery::Unacknowledged;
pub use http::App;
pub use isopod_identity::{TeamTokens, TokenKey};
pub use lifecycle::TeamLimits;
pub use listener::ConnectionLimits;
pub use start::{Core, JournalWriter, StartError, open_app, open_connections};
pub use templates::BuildLimits;
pub use tls::{TlsError, TlsIdentity};
