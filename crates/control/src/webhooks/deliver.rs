//! Sends what is due, and decides when to try again.

use std::time::Duration;

use futures::StreamExt as _;
use tokio_util::sync::CancellationToken;

use super::post::Poster;
use super::request::PostError;
use crate::clock::Timestamp;
use crate::store::{Delivery, Store, StoreError};

const LOOK_EVERY: Duration = Duration::from_millis(500);
const POST_TIMEOUT: Duration = Duration::from_secs(10);
const AT_ONCE: u32 = 16;
/// Before it is asked again whether to stop.
const ROUNDS: usize = 16;
/// The waits between attempts; after the last it is given up.
const WAITS: [Duration; 7] = [
    Duration::from_secs(1),
    Duration::from_secs(5),
    Duration::from_secs(30),
    Duration::from_secs(120),
    Duration::from_secs(600),
    Duration::from_secs(3600),
    Duration::from_secs(4 * 3600),
];

/// Delivers until the server stops.
pub(crate) async fn run_deliveries(store: Store, poster: Poster, stop: CancellationToken) {
    let mut pace = tokio::time::interval(LOOK_EVERY);
    pace.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            _ = pace.tick() => {}
        }
        tokio::select! {
            // What was under way is still due for the next server: it may be sent twice, but never not at all.
            () = stop.cancelled() => return,
            sent = deliver_due(&store, &poster) => if let Err(error) = sent {
                tracing::warn!(error = crate::chain(&error), "webhooks were not delivered");
            }
        }
    }
}

/// Few at a time: what is taken from a database that servers share is nobody else's for a while.
async fn deliver_due(store: &Store, poster: &Poster) -> Result<(), StoreError> {
    for _ in 0..ROUNDS {
        let due = store.due_deliveries(Timestamp::now(), AT_ONCE).await?;
        if due.is_empty() {
            break;
        }
        deliver(store, poster, due).await;
    }
    Ok(())
}

async fn deliver(store: &Store, poster: &Poster, due: Vec<Delivery>) {
    let mut attempts = futures::stream::iter(due)
        .map(|delivery| async move {
            let sent = tokio::time::timeout(POST_TIMEOUT, poster.post(&delivery)).await;
            (delivery, sent.unwrap_or(Err(PostError::Timeout)))
        })
        .buffer_unordered(usize::try_from(AT_ONCE).unwrap_or(1));
    while let Some((delivery, sent)) = attempts.next().await {
        let error = sent.err().map(|error| crate::chain(&error));
        let next = error.as_ref().and_then(|_| next_attempt(&delivery));
        // The others were sent as well, or will be: they are not given up for this one.
        if let Err(error) = store.record_attempt(&delivery, next, error).await {
            tracing::warn!(error = crate::chain(&error), "a delivery was not recorded and will be made again");
        }
    }
}

fn next_attempt(delivery: &Delivery) -> Option<Timestamp> {
    let wait = WAITS.get(usize::try_from(delivery.attempts).ok()?)?;
    Some(Timestamp::now().plus(*wait))
}
