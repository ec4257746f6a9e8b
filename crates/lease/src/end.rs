//! Ends a lease: removes its sandbox, and callers that wait for it get no other.

use super::{EndLease, LeaseEnded, Leases};

impl Leases {
    /// Removes everything that the holder has. Returns what that was. Idempotent.
    pub async fn end<H: EndLease>(&self, holder: H) -> Result<H::Ended, H::Error> {
        let entry = self.entry(holder.name());
        // Callers that wait for a sandbox now must not get a new one.
        entry.count_ending();
        let aborted = holder.ended(LeaseEnded::Aborted);
        // A task of its own finishes the removal even if the caller is cancelled.
        let ending = tokio::spawn(async move {
            let _alone = entry.alone.lock().await;
            let ended = holder.end().await;
            // Neither must callers that arrived during the removal.
            entry.count_ending();
            if ended.is_ok() {
                entry.remember(None);
            }
            ended
        });
        ending.await.unwrap_or(Err(aborted))
    }
}
