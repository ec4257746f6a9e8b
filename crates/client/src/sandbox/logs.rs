//! What sandboxes said.

use std::collections::BTreeMap;

use http::Method;
use isopod_guest_client::transport::Query;
use isopod_wire::SandboxId;
use serde::{Deserialize, Serialize};

use super::call::Call;
use super::{ApiError, Client};

/// Which entries to fetch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogQuery {
    /// From then on, in milliseconds since 1970.
    pub start_ms: Option<i64>,
    /// At most so many.
    pub limit: Option<u32>,
}

/// One entry.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct LogEntry {
    /// When, as the server writes it.
    pub timestamp: String,
    /// `debug`, `info`, `warn` or `error`.
    pub level: String,
    /// What.
    pub message: String,
    /// What else is known about it.
    #[serde(default)]
    pub fields: BTreeMap<String, String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Logs {
    #[serde(default)]
    log_entries: Vec<LogEntry>,
}

impl Client {
    /// The entries of a sandbox's log, the oldest first.
    ///
    /// # Errors
    /// [`ApiError::NotFound`] when there is no such sandbox.
    pub async fn logs(&self, sandbox: &SandboxId, query: LogQuery) -> Result<Vec<LogEntry>, ApiError> {
        let query = Query::new().with_some("start", query.start_ms).with_some("limit", query.limit);
        let call = Call::new(Method::GET, query.behind(&format!("/sandboxes/{sandbox}/logs")));
        let logs: Logs = self.call(call).await?.parse()?;
        Ok(logs.log_entries)
    }
}
