//! The health of the guest, and the resource usage of its sandbox.

use http::{HeaderMap, Method};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::{Guest, GuestError};
use crate::transport::{empty_body, read_limited};

const MAX_REPLY: usize = 4 << 20;

/// The current resource usage of a sandbox, as seen from inside.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct GuestMetrics {
    /// The time of measurement, in seconds since 1970.
    #[serde(rename = "ts")]
    pub timestamp: u64,
    /// The number of CPUs.
    pub cpu_count: u64,
    /// CPU usage in percent of all CPUs.
    pub cpu_used_pct: f64,
    /// Total memory in bytes.
    pub mem_total: u64,
    /// Used memory in bytes, without the page cache.
    pub mem_used: u64,
    /// Size of the page cache in bytes.
    pub mem_cache: u64,
    /// Used disk space in bytes.
    pub disk_used: u64,
    /// Total disk space in bytes.
    pub disk_total: u64,
}

impl Guest {
    /// Returns when the guest has answered.
    ///
    /// # Errors
    /// [`GuestError::SandboxNotRunning`] from an edge if the sandbox is paused or gone.
    pub async fn health(&self) -> Result<(), GuestError> {
        let http = &self.caller.http;
        let request = http.request(Method::GET, "/health", HeaderMap::new(), empty_body())?;
        http.exchange(request, |reply| self.caller.accept(reply)).await?;
        Ok(())
    }

    /// Returns the current resource usage of the sandbox.
    ///
    /// # Errors
    /// If the guest cannot tell.
    pub async fn metrics(&self) -> Result<GuestMetrics, GuestError> {
        self.get_json("/metrics").await
    }

    async fn get_json<T: DeserializeOwned>(&self, path: &str) -> Result<T, GuestError> {
        let http = &self.caller.http;
        let request = http.request(Method::GET, path, HeaderMap::new(), empty_body())?;
        let read = |reply| async {
            let reply = self.caller.accept(reply).await?;
            let body = read_limited(reply.into_body(), MAX_REPLY).await.map_err(|error| http.broken(error))?;
            serde_json::from_slice(&body).map_err(|error| GuestError::Protocol(format!("unreadable reply: {error}")))
        };
        http.exchange(request, read).await
    }
}
