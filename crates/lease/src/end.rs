//! Ends a lease: removes its sandbox, and callers that wait for it get no other.

use super::{EndLease, LeaseEnded, Leases};

impl Leases {
    /// Removes everything that the holder has. Returns whether there was a sandbox. Idempotent.
    pub async fn end<H: EndLease>(&self, holder: H) -> Result<bool, H::Error> {
        let seat = self.seat(holder.name());
        // Callers that wait for a sandbox now must not get a new one.
        seat.count_ending();
        let aborted = holder.ended(LeaseEnded::Aborted);
        // A task of its own finishes the removal even if the caller is cancelled.
        let ending = tokio::spawn(async move {
            let _alone = seat.alone.lock().await;
            let ended = holder.end().await;
            // Neither must callers that arrived during the removal.
            seat.count_ending();
            if ended.is_ok() {
                seat.remember(None);
            }
            ended
        });
        ending.await.unwrap_or(Err(aborted))
    }
}
