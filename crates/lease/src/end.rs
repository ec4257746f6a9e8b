//! The end of a lease: its sandbox is removed, and nobody who waits for it gets another.

use super::{EndLease, LeaseEnded, Leases};

impl Leases {
    /// Removes everything that the holder has. True if there was a sandbox. May be called again and again.
    pub async fn end<H: EndLease>(&self, holder: H) -> Result<bool, H::Error> {
        let seat = self.seat(holder.name());
        // Calls that wait for a sandbox now shall not get a new one.
        seat.count_ending();
        let aborted = holder.ended(LeaseEnded::Aborted);
        // In a task of its own: an end that was begun is finished.
        let ending = tokio::spawn(async move {
            let _alone = seat.alone.lock().await;
            let ended = holder.end().await;
            // Nor shall those that came in the meantime.
            seat.count_ending();
            if ended.is_ok() {
                seat.remember(None);
            }
            ended
        });
        ending.await.unwrap_or(Err(aborted))
    }
}
