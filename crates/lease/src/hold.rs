//! Gets the holder's sandbox: the one that it has, or a new one.

use super::entries::{Entry, Remembered};
use super::{Holder, LeaseEnded, Leased, Leases, Opened};

impl Leases {
    /// Returns a sandbox that the holder can use, and creates one if necessary.
    pub async fn hold<H: Holder>(&self, holder: H) -> Result<Leased<H::Sandbox>, H::Error> {
        let entry = self.entry(holder.name());
        // Read this before the first await, so that an end during any of them is noticed.
        let endings = entry.endings();
        if let Some(leased) = reuse(&holder, &entry).await? {
            return Ok(leased);
        }
        let aborted = holder.ended(LeaseEnded::Aborted);
        // A task of its own finishes the work even if the caller is cancelled, so nothing is left half made.
        let holding = tokio::spawn(async move {
            let _alone = entry.alone.lock().await;
            hold_alone(&holder, &entry, endings).await
        });
        holding.await.unwrap_or(Err(aborted))
    }
}

async fn reuse<H: Holder>(holder: &H, entry: &Entry) -> Result<Option<Leased<H::Sandbox>>, H::Error> {
    let Some(Remembered { sandbox, restarts }) = entry.remembered() else { return Ok(None) };
    let reused = holder.reuse(&sandbox).await?;
    Ok(reused.map(|sandbox| Leased { sandbox, replaced: None, restarts }))
}

async fn hold_alone<H: Holder>(holder: &H, entry: &Entry, endings: u64) -> Result<Leased<H::Sandbox>, H::Error> {
    if entry.endings() != endings {
        return Err(holder.ended(LeaseEnded::Meanwhile));
    }
    // The caller that held the lock before may have created the sandbox.
    if let Some(leased) = reuse(holder, entry).await? {
        return Ok(leased);
    }
    let mut opened = holder.open().await?;
    let held = find_or_create(holder, &mut opened).await;
    if let (Ok(leased), true) = (&held, H::IS_REMEMBERED) {
        entry.remember(Some(Remembered { sandbox: H::id(&leased.sandbox).clone(), restarts: leased.restarts }));
    }
    holder.close(opened.record).await;
    held
}

async fn find_or_create<H: Holder>(
    holder: &H,
    opened: &mut Opened<H::Record, H::Sandbox>,
) -> Result<Leased<H::Sandbox>, H::Error> {
    let live = opened.live.take();
    let is_new = live.is_none();
    let sandbox = match live {
        Some(live) => live,
        None => holder.create(&opened.record).await?,
    };
    let replaced = opened.recorded.take().filter(|old| old != H::id(&sandbox));
    let restarts = opened.restarts + u32::from(replaced.is_some());
    let leased = Leased { sandbox, replaced, restarts };
    let recorded = holder.record(&opened.record, &leased).await;
    if let Err(error) = recorded {
        if is_new {
            holder.discard(leased.sandbox).await;
        }
        return Err(error);
    }
    Ok(leased)
}
