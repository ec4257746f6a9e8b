//! The limits of connections.

use std::time::Duration;

/// The limits of connections.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionLimits {
    /// Maximum number of open connections.
    pub total: usize,
    /// Maximum number of concurrent requests to one sandbox.
    pub per_sandbox: usize,
    /// Time from the first byte of a request to the end of its head.
    pub head_timeout: Duration,
    /// Time between two requests. The SDKs keep idle connections for five minutes, and the server must not close them
    /// first.
    pub idle_timeout: Duration,
    /// Time between two pieces of an API request's body. Bodies for sandboxes may pause.
    pub body_timeout: Duration,
    /// How long an idle connection into a sandbox is kept for the next request.
    pub upstream_idle: Duration,
    /// Maximum size of a request's head.
    pub max_head: usize,
    /// Maximum size of an API request's body. Bodies for sandboxes are not limited.
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
