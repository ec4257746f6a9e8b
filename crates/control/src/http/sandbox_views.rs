//! How the API shows sandboxes: in responses to create requests, in lists, and in detail.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;

use axum::extract::FromRequestParts;
use http::request::Parts;
use isopod_api::DescribeInput;
use isopod_store::clock::Timestamp;
use isopod_store::{NetworkSettings, SandboxRow, State, VolumeMount};
use isopod_wire::node::{PauseMode, Secret};
use isopod_wire::{ENVD_VERSION, SandboxId};
use serde::Serialize;
use utoipa::ToSchema;

use super::app::App;

/// A field that old clients require. Its value does not matter.
const CLIENT_ID: &str = "isopod";

/// `host[:port]` of sandboxes in responses. It depends on the host name that the request was sent to.
pub(super) struct SandboxDomain(pub(super) String);

impl FromRequestParts<Arc<App>> for SandboxDomain {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self, Infallible> {
        Ok(Self(app.settings.domains.advertised_to(parts)))
    }
}

impl DescribeInput for SandboxDomain {}

/// The response to create, connect and resume requests.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Sandbox)]
pub(super) struct CreatedSandbox {
    #[serde(rename = "sandboxID")]
    #[schema(value_type = String)]
    sandbox_id: SandboxId,
    #[serde(rename = "templateID")]
    template_id: String,
    alias: String,
    #[serde(rename = "clientID")]
    client_id: &'static str,
    envd_version: &'static str,
    /// Left out rather than null if there is none, because some clients distinguish the two.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, nullable = false)]
    envd_access_token: Option<Secret>,
    #[schema(value_type = Option<String>)]
    traffic_access_token: Option<Secret>,
    domain: String,
}

pub(super) fn created_sandbox(domain: &str, row: &SandboxRow) -> CreatedSandbox {
    CreatedSandbox {
        sandbox_id: row.id.clone(),
        template_id: row.template.clone(),
        alias: row.alias.as_ref().unwrap_or(&row.template).clone(),
        client_id: CLIENT_ID,
        envd_version: ENVD_VERSION,
        envd_access_token: row.access_token.clone(),
        traffic_access_token: row.traffic_token.clone(),
        domain: domain.to_owned(),
    }
}

/// One sandbox in a list. It borrows from the row, because lists are long.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = ListedSandbox)]
pub(super) struct Listed<'a> {
    #[serde(rename = "sandboxID")]
    #[schema(value_type = String)]
    sandbox_id: &'a SandboxId,
    #[serde(rename = "templateID")]
    template_id: &'a str,
    alias: &'a str,
    #[serde(rename = "clientID")]
    client_id: &'static str,
    started_at: Timestamp,
    end_at: Timestamp,
    cpu_count: u32,
    #[serde(rename = "memoryMB")]
    memory_mb: u64,
    #[serde(rename = "diskSizeMB")]
    disk_size_mb: u64,
    state: ShownState,
    envd_version: &'static str,
    #[schema(value_type = BTreeMap<String, String>)]
    metadata: &'a BTreeMap<String, String>,
    volume_mounts: &'a [VolumeMount],
}

pub(super) fn listed(row: &SandboxRow) -> Listed<'_> {
    Listed {
        sandbox_id: &row.id,
        template_id: &row.template,
        alias: row.alias.as_ref().unwrap_or(&row.template),
        client_id: CLIENT_ID,
        started_at: row.started_at,
        end_at: row.ends_at,
        cpu_count: row.limits.whole_cpus(),
        memory_mb: row.limits.memory.as_mib(),
        disk_size_mb: row.limits.disk.map_or(0, |disk| disk.as_mib()),
        state: shown_state(row.state),
        envd_version: ENVD_VERSION,
        metadata: &row.metadata,
        volume_mounts: &row.volume_mounts,
    }
}

#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
#[schema(as = SandboxState)]
pub(super) enum ShownState {
    Running,
    Paused,
}

/// Clients know no other states. A sandbox that is being created or ended is shown as running.
fn shown_state(state: State) -> ShownState {
    match state.shown() {
        Some("paused") => ShownState::Paused,
        _ => ShownState::Running,
    }
}

/// All details of one sandbox.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = SandboxDetail)]
pub(super) struct Detail<'a> {
    #[serde(flatten)]
    listed: Listed<'a>,
    domain: &'a str,
    /// Left out rather than null if there is none, because some clients distinguish the two.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, nullable = false)]
    envd_access_token: Option<&'a Secret>,
    allow_internet_access: Option<bool>,
    lifecycle: Lifecycle,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    network: Option<&'a NetworkSettings>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pause_mode: Option<ShownPauseMode>,
}

/// What happens to a sandbox automatically.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = SandboxLifecycle)]
struct Lifecycle {
    auto_resume: bool,
    on_timeout: OnTimeout,
}

#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
enum OnTimeout {
    Kill,
    Pause,
}

#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
#[schema(as = PauseMode)]
enum ShownPauseMode {
    Full,
    Filesystem,
}

pub(super) fn detail<'a>(domain: &'a str, row: &'a SandboxRow) -> Detail<'a> {
    Detail {
        listed: listed(row),
        domain,
        envd_access_token: row.access_token.as_ref(),
        allow_internet_access: row.allow_internet,
        lifecycle: Lifecycle {
            auto_resume: row.auto_resume,
            on_timeout: if row.auto_pause { OnTimeout::Pause } else { OnTimeout::Kill },
        },
        network: Some(&row.network).filter(|network| !network.is_empty()),
        pause_mode: match row.state {
            State::Paused(PauseMode::Memory) => Some(ShownPauseMode::Full),
            State::Paused(PauseMode::Filesystem) => Some(ShownPauseMode::Filesystem),
            _ => None,
        },
    }
}
