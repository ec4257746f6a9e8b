//! Waiting for an optional deadline.

use tokio::time::Instant;

/// Sleeps until the deadline, or forever if there is none.
pub(crate) async fn at(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}
