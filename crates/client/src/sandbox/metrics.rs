//! What sandboxes use and used.

use http::Method;
use isopod_guest_client::transport::Query;
use isopod_wire::SandboxId;
use serde::{Deserialize, Serialize};
use time::OffsetDateTime;

use super::call::Call;
use super::{ApiError, Client};

/// What a sandbox used at one moment.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SandboxMetric {
    /// When.
    #[serde(with = "time::serde::rfc3339")]
    pub timestamp: OffsetDateTime,
    /// How many CPUs it had.
    pub cpu_count: u32,
    /// Percent of all of them.
    pub cpu_used_pct: f64,
    /// In bytes.
    pub mem_used: u64,
    /// In bytes.
    pub mem_total: u64,
    /// The page cache in bytes.
    #[serde(default)]
    pub mem_cache: u64,
    /// In bytes.
    pub disk_used: u64,
    /// In bytes.
    pub disk_total: u64,
}

impl Client {
    /// What a sandbox used between two moments, in seconds since 1970, each of which may be left out.
    ///
    /// # Errors
    /// [`ApiError::NotFound`] when there is no such sandbox.
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
