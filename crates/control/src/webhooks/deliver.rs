//! Sends what is due, and decides when to try again.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use isopod_outbound::RequestError;
use isopod_store::clock::Timestamp;
use isopod_store::{Delivery, Store, StoreError, TeamId};
use tokio_util::sync::CancellationToken;

use super::post::Poster;

const LOOK_EVERY: Duration = Duration::from_millis(500);
const POST_TIMEOUT: Duration = Duration::from_secs(10);
/// Of one team, and of all.
const PER_TEAM: usize = 4;
const AT_ONCE: usize = 256;
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

/// Delivers until the server stops. What is under way then is still due for the next server: it may be sent twice, but
/// never not at all.
pub(crate) async fn run_deliveries(store: Store, poster: Poster, stop: CancellationToken) {
    let mut pace = tokio::time::interval(LOOK_EVERY);
    pace.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut attempts = FuturesUnordered::new();
    let mut under_way = UnderWay::default();
    loop {
        let found = tokio::select! {
            () = stop.cancelled() => return,
            Some(delivery) = attempts.next() => {
                under_way.end(&delivery);
                due_of_team(&store, &under_way, &delivery.team).await
            }
            _ = pace.tick() => due(&store, &under_way).await,
        };
        match found {
            Ok(found) => {
                for delivery in found {
                    under_way.begin(&delivery);
                    attempts.push(attempt(&store, &poster, delivery));
                }
            }
            Err(error) => tracing::warn!(error = isopod_wire::error_chain(&error), "webhooks were not delivered"),
        }
    }
}

/// What is being sent, by team. A receiver that does not answer holds a place for as long as we wait for it, so each team
/// has its own few: what one team's receivers do holds up nobody else's deliveries.
#[derive(Debug, Default)]
struct UnderWay(HashMap<TeamId, HashSet<String>>);

impl UnderWay {
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

    /// How many more the team may have.
    fn room(&self, team: &TeamId) -> usize {
        let all: usize = self.0.values().map(HashSet::len).sum();
        let of_team = self.0.get(team).map_or(0, HashSet::len);
        PER_TEAM.saturating_sub(of_team).min(AT_ONCE.saturating_sub(all))
    }
}

async fn due(store: &Store, under_way: &UnderWay) -> Result<Vec<Delivery>, StoreError> {
    let mut found = Vec::new();
    for team in store.teams_with_due_deliveries(Timestamp::now()).await? {
        if found.len() >= AT_ONCE {
            break;
        }
        found.extend(due_of_team(store, under_way, &team).await?);
    }
    Ok(found)
}

async fn due_of_team(store: &Store, under_way: &UnderWay, team: &TeamId) -> Result<Vec<Delivery>, StoreError> {
    let none = HashSet::new();
    match under_way.room(team) {
        0 => Ok(Vec::new()),
        room => {
            let taken = under_way.0.get(team).unwrap_or(&none);
            store.due_deliveries(team, Timestamp::now(), room, taken).await
        }
    }
}

async fn attempt(store: &Store, poster: &Poster, delivery: Delivery) -> Delivery {
    let sent = tokio::time::timeout(POST_TIMEOUT, poster.post(&delivery)).await;
    let error = sent.unwrap_or(Err(RequestError::Timeout)).err().map(|error| isopod_wire::error_chain(&error));
    let next = error.as_ref().and_then(|_| next_attempt(&delivery));
    if let Err(error) = store.record_attempt(&delivery, next, error).await {
        tracing::warn!(error = isopod_wire::error_chain(&error), "a delivery was not recorded and will be made again");
    }
    delivery
}

fn next_attempt(delivery: &Delivery) -> Option<Timestamp> {
    let wait = WAITS.get(usize::try_from(delivery.attempts).ok()?)?;
    Some(Timestamp::now().plus(*wait))
}
