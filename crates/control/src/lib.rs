//! The E2B API server: it decides about sandboxes and records what it decides, and carries traffic to them.
//!
//! [`serve`] answers on one port: requests that name a sandbox go to the edge, the rest is API. What runs sandboxes is
//! behind [`isopod_wire::node::NodeApi`]; this crate knows nothing of kernels and reads no environment.

mod app;
mod clock;
mod config;
mod edge;
mod files;
mod http;
mod identity;
mod lifecycle;
mod query;
mod runs;
mod secrets;
mod serve;
mod service;
mod sessions;
mod store;
mod telemetry;
mod templates;
mod tls;
mod toolkit;
mod webhooks;
mod workspace;

pub use config::{BuildLimits, ConnectionLimits, Retention, RunsConfig, ServeConfig, TeamLimits};
pub use files::FileLimits;
pub use identity::{TeamTokens, TokenKey};
pub use serve::{ServeError, serve};
pub use service::{CommandPolicy, ServiceConfig, backend};
pub use sessions::{SessionSettings, SyncCaps};
pub use store::service::{AuditChain, AuditLine, QuotaExceeded, QuotaLimits, QuotaOwner, Quotas, Verified};
pub use store::{FirstKey, KeyGrant, LocalKey, Rotation, Scope, Store, StoreError, TeamId};
pub use telemetry::{OtlpConfig, OtlpError, OtlpExporter, OtlpLayer, otlp};
pub use tls::{TlsError, TlsIdentity};
pub use workspace::{
    DEFAULT_BASE_PATH, EXECUTION_KEY, EXECUTIONS, EnsureWorkspace, VOLUMES, Workspace, WorkspaceError, is_workspace_id,
};

/// An error with everything that caused it, in one line for the log.
fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}
