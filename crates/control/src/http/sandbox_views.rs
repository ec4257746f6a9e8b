//! How sandboxes are shown: after they were made, in lists, and in detail.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;

use axum::extract::FromRequestParts;
use http::request::Parts;
use isopod_store::clock::Timestamp;
use isopod_store::{SandboxRow, State, VolumeMount};
use isopod_wire::node::PauseMode;
use isopod_wire::{ENVD_VERSION, SandboxId};
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::app::App;

/// A required field of old; nothing depends on what it says.
const CLIENT_ID: &str = "isopod";

/// `host[:port]` of sandboxes, for answers that name one. It follows the name that the request was sent to.
pub(super) struct ToldDomain(pub(super) String);

impl FromRequestParts<Arc<App>> for ToldDomain {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self, Infallible> {
        Ok(Self(app.settings.domains.told_to(parts)))
    }
}

/// The answer to create, connect and resume.
pub(super) fn made(domain: &str, row: &SandboxRow) -> Value {
    json!({
        "sandboxID": row.id,
        "templateID": row.template,
        "alias": row.alias.as_ref().unwrap_or(&row.template),
        "clientID": CLIENT_ID,
        "envdVersion": ENVD_VERSION,
        "envdAccessToken": row.access_token,
        "trafficAccessToken": row.traffic_token,
        "domain": domain,
    })
    .without_nulls(&["envdAccessToken"])
}

/// One line of a list. Lists are long, so it is written without a copy of the row.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Listed<'a> {
    #[serde(rename = "sandboxID")]
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
    state: Option<&'static str>,
    envd_version: &'static str,
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
        state: row.state.shown(),
        envd_version: ENVD_VERSION,
        metadata: &row.metadata,
        volume_mounts: &row.volume_mounts,
    }
}

/// Everything about one.
pub(super) fn detail(domain: &str, row: &SandboxRow) -> Value {
    let mut shown = json!(listed(row));
    shown["domain"] = json!(domain);
    shown["envdAccessToken"] = json!(row.access_token);
    shown["allowInternetAccess"] = json!(row.allow_internet);
    let on_timeout = if row.auto_pause { "pause" } else { "kill" };
    shown["lifecycle"] = json!({ "autoResume": row.auto_resume, "onTimeout": on_timeout });
    if !row.network.is_empty() {
        shown["network"] = json!(row.network);
    }
    if let State::Paused(mode) = row.state {
        shown["pauseMode"] = json!(match mode {
            PauseMode::Memory => "full",
            PauseMode::Filesystem => "filesystem",
        });
    }
    shown.without_nulls(&["envdAccessToken"])
}

trait WithoutNulls {
    /// Leaves these fields out when there is nothing in them: some clients tell absent from null.
    fn without_nulls(self, names: &[&str]) -> Self;
}

impl WithoutNulls for Value {
    fn without_nulls(mut self, names: &[&str]) -> Self {
        let fields: Option<&mut Map<String, Value>> = self.as_object_mut();
        if let Some(fields) = fields {
            fields.retain(|name, value| !(value.is_null() && names.contains(&name.as_str())));
        }
        self
    }
}
