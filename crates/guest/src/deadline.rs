//! Waiting for a point in time that may not exist.

use tokio::time::Instant;

/// Sleeps until then; for ever when there is no such time.
pub(crate) async fn at(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}
