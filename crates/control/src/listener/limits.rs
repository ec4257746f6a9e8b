//! What one connection may do.

use std::time::Duration;

/// What one connection may do.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionLimits {
    /// Connections at the same time.
    pub total: usize,
    /// Requests to one sandbox at the same time.
    pub per_sandbox: usize,
    /// From the first byte of a request to the end of its head.
    pub head_timeout: Duration,
    /// Between two requests. The SDKs keep idle connections for five minutes and must not lose that race.
    pub idle_timeout: Duration,
    /// Between two pieces of an API request's body. Bodies for sandboxes may be silent.
    pub body_timeout: Duration,
    /// How long an unused connection into a sandbox is kept for the next request.
    pub upstream_idle: Duration,
    /// Size of a request's head.
    pub max_head: usize,
    /// Size of an API request's body. Bodies for sandboxes are not limited.
    pub max_body: usize,
}

impl Default for ConnectionLimits {
    fn default() -> Self {
        Self {
            total: 20_000,
            per_sandbox: 1000,
            head_timeout: Duration::from_secs(15),
            idle_timeout: Duration::from_secs(330),
            body_timeout: Duration::from_secs(60),
            upstream_idle: Duration::from_secs(30),
            max_head: 256 << 10,
            max_body: 4 << 20,
        }
    }
}
