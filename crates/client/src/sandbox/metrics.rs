//! The resource usage of sandboxes.

use http::Method;
use isopod_guest_client::transport::Query;
use isopod_wire::SandboxId;
use serde::{Deserialize, Serialize};
use time::OffsetDateTime;

use super::call::Call;
use super::{ApiError, Client};

/// The resource usage of a sandbox at one moment.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SandboxMetric {
    /// The time of measurement.
    #[serde(with = "time::serde::rfc3339")]
    pub timestamp: OffsetDateTime,
    /// The number of its CPUs.
    pub cpu_count: u32,
    /// CPU usage in percent of all CPUs.
    pub cpu_used_pct: f64,
    /// Used memory in bytes.
    pub mem_used: u64,
    /// Total memory in bytes.
    pub mem_total: u64,
    /// Size of the page cache in bytes.
    #[serde(default)]
    pub mem_cache: u64,
    /// Used disk space in bytes.
    pub disk_used: u64,
    /// Total disk space in bytes.
    pub disk_total: u64,
}

impl Client {
    /// Returns the resource usage of a sandbox between two optional times, in seconds since 1970.
    ///
    /// # Errors
    /// [`ApiError::NotFound`] if there is no such sandbox.
    pub async fn metrics(
        &self,
        sandbox: &SandboxId,
        start: Option<i64>,
        end: Option<i64>,
    ) -> Result<Vec<SandboxMetric>, ApiError> {
        let query = Query::new().with_some("start", start).with_some("end", end);
        self.call(Call::new(Method::GET, query.behind(&format!("/sandboxes/{sandbox}/metrics")))).await?.parse()
    }
}
