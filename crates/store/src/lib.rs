//! The store: everything that must outlive the server, in one SQLite file or in a PostgreSQL database.
//!
//! Each method is one transaction, so a crash leaves either all of its changes or none. The store only records. Other
//! crates decide what may happen and when. The statements are the same for both databases, see `db`.

mod artifact_info;
mod artifacts;
mod build_logs;
mod builds;
pub mod clock;
mod cluster;
mod database;
mod events;
mod execution_name;
mod executions;
mod file_record;
mod idempotency;
mod keys;
mod logs;
mod members;
mod metrics;
mod network_settings;
mod output;
mod owner;
mod placement;
mod promotions;
mod prune;
mod retention;
mod run_cleanups;
mod run_reads;
mod run_services;
mod runs;
mod sandbox_state;
mod sandboxes;
pub mod secrets;
mod servers;
pub mod service;
mod session_files;
mod sessions;
mod snapshots;
mod spawns;
mod template_files;
pub mod template_name;
mod templates;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod volume_mount;
mod volumes;
mod webhooks;
mod workflow;

pub use artifact_info::ArtifactInfo;
pub use build_logs::{BuildLine, BuildLogQuery};
pub use builds::{Build, BuildReason, BuildStatus, SnapshotSource, Tag};
pub use cluster::{ClusterNode, ClusterToken, JoinOutcome, Joining};
pub use database::{Connections, PlainViewsError, Store, StoreError, StoreFile, server_id};
pub use events::{Event, EventQuery, EventType, ShownEvent};
pub use execution_name::{ExecutionName, ExecutionNameError, is_workspace_id};
pub use executions::ExecutionClaim;
pub use file_record::{FileFacts, FileHash, FileRecord, Side};
pub use idempotency::Claim;
pub use keys::{ApiKey, FirstKey, KeyGrant, LocalKey, Rotation, Scope, TeamId};
pub use logs::{Direction, Level, LogLine, LogQuery};
pub use metrics::Sample;
pub use network_settings::NetworkSettings;
pub use output::OutputPosition;
pub use owner::{Owner, OwnerIdError, OwnerKind, RESERVED, TeamOwner};
pub use placement::Resource;
pub use promotions::{ExpiredPromotion, Promotion};
pub use retention::Retention;
pub use run_cleanups::Cleanup;
pub use run_reads::RunQuery;
pub use run_services::{AgentService, RunService, ServiceCleanup};
pub use runs::{InvocationRow, NodeRow, RunRow, RunStatus, RunTurn};
pub use sandbox_state::{Ending, State};
pub use sandboxes::{InsertError, SandboxRow};
pub use servers::{SandboxCount, ServerRow};
pub use sessions::SessionRow;
pub use snapshots::{
    BeginSnapshot, FinishSnapshot, KeptSnapshot, NewSnapshot, SnapshotPart, SnapshotQuery, SnapshotSize,
};
pub use templates::{Template, TemplateKind};
pub use volume_mount::VolumeMount;
pub use volumes::Volume;
pub use webhooks::{Delivery, Webhook};
pub use workflow::{
    Action, EventKind, NodeSpec, NodeState, OnFailure, Role, Rule, RunEvent, RunId, RunIdError, RunSettings, Work,
};
