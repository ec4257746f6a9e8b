//! The data of a server about sandboxes.

use std::collections::BTreeMap;

use http::Method;
use isopod_wire::SandboxId;
use serde::{Deserialize, Serialize};
use time::OffsetDateTime;

use super::call::Call;
use super::{ApiError, Client};

/// A sandbox in a list.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SandboxInfo {
    /// Its id.
    #[serde(rename = "sandboxID")]
    pub id: SandboxId,
    /// The template that it was created from.
    #[serde(rename = "templateID")]
    pub template_id: String,
    /// A name of the template.
    pub alias: Option<String>,
    /// When it started.
    #[serde(with = "time::serde::rfc3339")]
    pub started_at: OffsetDateTime,
    /// When its timeout expires.
    #[serde(with = "time::serde::rfc3339")]
    pub end_at: OffsetDateTime,
    /// The number of its CPUs.
    pub cpu_count: u32,
    /// Its memory in MiB.
    #[serde(rename = "memoryMB")]
    pub memory_mb: u64,
    /// Its disk in MiB.
    #[serde(rename = "diskSizeMB", default)]
    pub disk_size_mb: u64,
    /// Its state.
    pub state: SandboxState,
    /// The protocol version of its guest.
    #[serde(default)]
    pub envd_version: String,
    /// Its metadata.
    #[serde(default, deserialize_with = "null_as_empty")]
    pub metadata: BTreeMap<String, String>,
}

/// The state of a sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum SandboxState {
    /// It is running.
    Running,
    /// It is paused.
    Paused,
    /// A state that this client does not know.
    #[serde(other)]
    Unknown,
}

/// All details of one sandbox.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SandboxDetail {
    /// The details that lists show too.
    #[serde(flatten)]
    pub info: SandboxInfo,
    /// The domain of its ports.
    pub domain: Option<String>,
    /// Whether it can reach the internet, if that was set.
    pub allow_internet_access: Option<bool>,
    /// What happens at its timeout.
    pub lifecycle: Option<Lifecycle>,
    /// `full` or `filesystem`, if it is paused.
    pub pause_mode: Option<String>,
    /// Its network rules in the server's format.
    pub network: Option<serde_json::Value>,
}

/// What happens to a sandbox automatically.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Lifecycle {
    /// Whether traffic resumes it.
    pub auto_resume: bool,
    /// `kill` or `pause`.
    pub on_timeout: String,
}

impl Client {
    /// Returns all details of one sandbox.
    ///
    /// # Errors
    /// [`ApiError::NotFound`] if it does not exist.
    pub async fn info(&self, sandbox: &SandboxId) -> Result<SandboxDetail, ApiError> {
        self.call(Call::new(Method::GET, format!("/sandboxes/{sandbox}"))).await?.parse()
    }
}

fn null_as_empty<'de, D: serde::Deserializer<'de>>(from: D) -> Result<BTreeMap<String, String>, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn details_parse_with_and_without_their_extras() {
        let mut detail = serde_json::json!({
            "sandboxID": "i1", "templateID": "base", "clientID": "x", "startedAt": "2026-11-15T10:00:00.123456789Z",
            "endAt": "2026-11-15T12:00:00+01:00", "cpuCount": 2, "memoryMB": 1024, "diskSizeMB": 0,
            "state": "running", "envdVersion": "0.6.13", "metadata": null,
        });
        let plain: SandboxDetail = serde_json::from_value(detail.clone()).unwrap();
        assert_eq!((plain.info.state, plain.lifecycle), (SandboxState::Running, None));
        detail["state"] = "dreaming".into();
        detail["metadata"] = serde_json::json!({ "a": "b" });
        detail["lifecycle"] = serde_json::json!({ "autoResume": true, "onTimeout": "pause" });
        let full: SandboxDetail = serde_json::from_value(detail).unwrap();
        assert_eq!((full.info.state, full.info.metadata["a"].as_str()), (SandboxState::Unknown, "b"));
        assert!(full.lifecycle.unwrap().auto_resume);
    }
}
