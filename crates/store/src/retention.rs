//! How long records are kept.

use std::time::Duration;

/// The retention time of each kind of record.
#[derive(Clone, Copy, Debug)]
pub struct Retention {
    /// Log lines.
    pub logs: Duration,
    /// Samples of resource use.
    pub metrics: Duration,
    /// Lifecycle events.
    pub events: Duration,
    /// Sandboxes that have ended.
    pub ended: Duration,
    /// The results of requests with an idempotency key.
    pub idempotency: Duration,
}

impl Default for Retention {
    fn default() -> Self {
        Self {
            logs: HOUR * 24 * 7,
            metrics: HOUR * 24,
            events: HOUR * 24 * 7,
            ended: HOUR * 24 * 30,
            idempotency: HOUR * 24,
        }
    }
}

const HOUR: Duration = Duration::from_secs(3600);
