//! How the guest is: whether it answers, and what its sandbox uses.

use http::{HeaderMap, Method};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::{Guest, GuestError};
use crate::transport::{empty_body, read_limited};

const MAX_REPLY: usize = 4 << 20;

/// What a sandbox uses now, as it sees itself.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct GuestMetrics {
    /// When, in seconds since 1970.
    #[serde(rename = "ts")]
    pub timestamp: u64,
    /// How many CPUs it has.
    pub cpu_count: u64,
    /// Percent of all of them.
    pub cpu_used_pct: f64,
    /// In bytes.
    pub mem_total: u64,
    /// In bytes, without the page cache.
    pub mem_used: u64,
    /// The page cache in bytes.
    pub mem_cache: u64,
    /// In bytes.
    pub disk_used: u64,
    /// In bytes.
    pub disk_total: u64,
}

impl Guest {
    /// Returns when the guest has answered.
    ///
    /// # Errors
    /// [`GuestError::SandboxNotRunning`] from an edge when the sandbox is paused or gone.
    pub async fn health(&self) -> Result<(), GuestError> {
        let http = &self.caller.http;
        let request = http.request(Method::GET, "/health", HeaderMap::new(), empty_body())?;
        http.exchange(request, |reply| self.caller.accept(reply)).await?;
        Ok(())
    }

    /// What the sandbox uses now.
    ///
    /// # Errors
    /// When the guest cannot tell.
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
