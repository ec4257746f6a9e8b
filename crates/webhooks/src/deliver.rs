//! Sends due deliveries, and decides when to retry.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use isopod_outbound::RequestError;
use isopod_store::clock::Timestamp;
use isopod_store::{Delivery, Store, StoreError, TeamId};
use tokio_util::sync::CancellationToken;

use crate::post::Poster;

const POLL_EVERY: Duration = Duration::from_millis(500);
const POST_TIMEOUT: Duration = Duration::from_secs(10);
/// The maximum number of concurrent deliveries of one team, and of all teams.
const PER_TEAM: usize = 4;
const MAX_CONCURRENT: usize = 256;
/// The waits between attempts. After the last one, the delivery is given up.
const RETRY_WAITS: [Duration; 7] = [
    Duration::from_secs(1),
    Duration::from_secs(5),
    Duration::from_secs(30),
    Duration::from_secs(120),
    Duration::from_secs(600),
    Duration::from_secs(3600),
    Duration::from_secs(4 * 3600),
];

/// Sends deliveries until the server stops. Deliveries that are in progress then are still due for the next server, so
/// they may be sent twice, but are never lost.
pub async fn run_deliveries(store: Store, poster: Poster, stop: CancellationToken) {
    let mut pace = tokio::time::interval(POLL_EVERY);
    pace.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut attempts = FuturesUnordered::new();
    let mut in_progress = InProgress::default();
    loop {
        let found = tokio::select! {
            () = stop.cancelled() => return,
            Some(delivery) = attempts.next() => {
                in_progress.end(&delivery);
                due_of_team(&store, &in_progress, &delivery.team).await
            }
            _ = pace.tick() => due(&store, &in_progress).await,
        };
        match found {
            Ok(found) => {
                for delivery in found {
                    in_progress.begin(&delivery);
                    attempts.push(attempt(&store, &poster, delivery));
                }
            }
            Err(error) => {
                tracing::warn!(error = isopod_wire::error_chain(&error), "could not read due webhook deliveries")
            }
        }
    }
}

/// The deliveries in progress, by team. A receiver that does not answer occupies a slot until the timeout, so each team
/// has a few of its own. This way, receivers of one team cannot delay deliveries of others.
#[derive(Debug, Default)]
struct InProgress(HashMap<TeamId, HashSet<String>>);

impl InProgress {
    fn begin(&mut self, delivery: &Delivery) {
        self.0.entry(delivery.team.clone()).or_default().insert(delivery.id.clone());
    }

    fn end(&mut self, delivery: &Delivery) {
        if let Some(of_team) = self.0.get_mut(&delivery.team) {
            of_team.remove(&delivery.id);
            if of_team.is_empty() {
                self.0.remove(&delivery.team);
            }
        }
    }

    /// How many more deliveries the team may start.
    fn room(&self, team: &TeamId) -> usize {
        let all: usize = self.0.values().map(HashSet::len).sum();
        let of_team = self.0.get(team).map_or(0, HashSet::len);
        PER_TEAM.saturating_sub(of_team).min(MAX_CONCURRENT.saturating_sub(all))
    }
}

async fn due(store: &Store, in_progress: &InProgress) -> Result<Vec<Delivery>, StoreError> {
    let mut found = Vec::new();
    for team in store.teams_with_due_deliveries(Timestamp::now()).await? {
        if found.len() >= MAX_CONCURRENT {
            break;
        }
        found.extend(due_of_team(store, in_progress, &team).await?);
    }
    Ok(found)
}

async fn due_of_team(store: &Store, in_progress: &InProgress, team: &TeamId) -> Result<Vec<Delivery>, StoreError> {
    let none = HashSet::new();
    match in_progress.room(team) {
        0 => Ok(Vec::new()),
        room => {
            let taken = in_progress.0.get(team).unwrap_or(&none);
            store.due_deliveries(team, Timestamp::now(), room, taken).await
        }
    }
}

async fn attempt(store: &Store, poster: &Poster, delivery: Delivery) -> Delivery {
    let sent = tokio::time::timeout(POST_TIMEOUT, poster.post(&delivery)).await;
    let error = sent.unwrap_or(Err(RequestError::Timeout)).err().map(|error| isopod_wire::error_chain(&error));
    let next = error.as_ref().and_then(|_| next_attempt(&delivery));
    if let Err(error) = store.record_attempt(&delivery, next, error).await {
        tracing::warn!(
            error = isopod_wire::error_chain(&error),
            "could not record a webhook delivery; it will be sent again"
        );
    }
    delivery
}

fn next_attempt(delivery: &Delivery) -> Option<Timestamp> {
    let wait = RETRY_WAITS.get(usize::try_from(delivery.attempts).ok()?)?;
    Some(Timestamp::now().plus(*wait))
}
