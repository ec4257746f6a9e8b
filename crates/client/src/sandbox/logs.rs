//! The logs of sandboxes.

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
    /// The start, in milliseconds since 1970.
    pub start_ms: Option<i64>,
    /// The maximum number of entries.
    pub limit: Option<u32>,
}

/// One entry.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct LogEntry {
    /// The time in the server's format.
    pub timestamp: String,
    /// `debug`, `info`, `warn` or `error`.
    pub level: String,
    /// The text.
    pub message: String,
    /// Additional fields.
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
    /// Returns the entries of a sandbox's log, the oldest first.
    ///
    /// # Errors
    /// [`ApiError::NotFound`] if there is no such sandbox.
    pub async fn logs(&self, sandbox: &SandboxId, query: LogQuery) -> Result<Vec<LogEntry>, ApiError> {
        let query = Query::new().with_some("start", query.start_ms).with_some("limit", query.limit);
        let call = Call::new(Method::GET, query.behind(&format!("/sandboxes/{sandbox}/logs")));
        let logs: Logs = self.call(call).await?.parse()?;
        Ok(logs.log_entries)
    }
}
