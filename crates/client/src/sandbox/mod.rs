//! Sandboxes of one server: create, find and end them, and access the programs inside.
//!
//! A [`Client`] is a cheap handle for a server and a key. A [`Sandbox`] is one sandbox with its tokens.

mod address;
mod call;
mod client;
mod create;
mod drain;
mod error;
mod fork;
mod handle;
mod info;
mod keys;
mod kill;
mod list;
mod local_names;
mod logs;
mod metrics;
mod nodes;
mod pause;
mod quotas;
mod retry;
mod runs;
mod snapshot;
mod template_image;
mod templates;
mod timeout;

pub(crate) use call::Call;
pub use client::{Client, ClientConfig, ConfigError};
pub use create::{NetworkConfig, NewSandbox};
pub use drain::{Drained, NotSaved};
pub use error::ApiError;
pub use handle::Sandbox;
pub use info::{Lifecycle, SandboxDetail, SandboxInfo, SandboxState};
pub use keys::{ApiKeyInfo, NewApiKey, NewKey};
pub use list::{ListSandboxes, SandboxPages};
pub use local_names::{LocalNames, ServedNames};
pub use logs::{LogEntry, LogQuery};
pub use metrics::SandboxMetric;
pub use nodes::NodeInfo;
pub use quotas::{QuotaLimits, QuotaReport, QuotaUsage, TeamQuota, Tier, Tiers};
pub use runs::{RunEvent, RunEvents};
pub use snapshot::{ListSnapshots, NewSnapshot, SnapshotInfo};
pub use template_image::TemplateImage;
pub use templates::{
    BegunBuild, BuildContext, BuildLogEntry, BuildProgress, BuildReason, DockerfileBuild, RequestedBuild,
    TemplateBuild, TemplateInfo,
};
