//! What happens to agents' sandboxes, for those who follow it live (S2.24): the last hundred events of each agent are kept
//! to be told again to who comes late or comes back.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::Value;
use tokio::sync::broadcast;

use crate::clock::Timestamp;
use crate::store::TeamId;

/// The followers and what they may have missed.
#[derive(Debug)]
pub(crate) struct Hub {
    /// Written with every event and every new follower; held for a few instructions.
    books: Mutex<Books>,
    next_id: AtomicU64,
}

#[derive(Debug, Default)]
struct Books {
    agents: HashMap<(TeamId, Option<String>), VecDeque<Arc<HubEvent>>>,
    teams: HashMap<TeamId, broadcast::Sender<Arc<HubEvent>>>,
    followers: HashMap<String, u32>,
}

/// One event.
#[derive(Debug)]
pub(crate) struct HubEvent {
    /// Grows, also from one server process to the next.
    pub(crate) id: u64,
    pub(crate) agent: Option<String>,
    /// `sandbox_status`, `git_operation`, `command_output` or `pr_created`.
    pub(crate) kind: &'static str,
    pub(crate) data: Value,
}

/// What a follower gets: first what it missed, then what comes.
#[derive(Debug)]
pub(crate) struct Following {
    pub(crate) missed: VecDeque<Arc<HubEvent>>,
    pub(crate) coming: broadcast::Receiver<Arc<HubEvent>>,
    pub(crate) agent: Option<String>,
    _place: FollowerPlace,
}

/// One of the places that a caller has; dropping it gives it back.
#[derive(Debug)]
struct FollowerPlace {
    hub: Arc<Hub>,
    caller: String,
}

/// The caller follows as much as one may.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("you follow {MOST_FOLLOWERS} streams already")]
pub(crate) struct TooManyFollowers;

const KEPT: usize = 100;
const REPLAYED: usize = 10;
const MOST_FOLLOWERS: u32 = 10;
/// Who is further behind is cut off, and comes back with the number of the last event that it saw.
const BEHIND: usize = 1024;
const MOST_AGENTS: usize = 10_000;

impl Hub {
    pub(crate) fn new() -> Arc<Self> {
        // Milliseconds with room for a thousand events each: later servers begin with larger numbers.
        let start = u64::try_from(Timestamp::now().0).unwrap_or_default() << 10;
        Arc::new(Self { books: Mutex::default(), next_id: AtomicU64::new(start) })
    }

    pub(crate) fn publish(&self, team: &TeamId, agent: Option<&str>, kind: &'static str, data: Value) {
        let mut books = self.books.lock().unwrap_or_else(PoisonError::into_inner);
        // Numbered under the lock, so that numbers grow in the order of the events.
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let event = Arc::new(HubEvent { id, agent: agent.map(str::to_owned), kind, data });
        let name = (team.clone(), event.agent.clone());
        if books.agents.len() >= MOST_AGENTS && !books.agents.contains_key(&name) {
            books.forget_the_quietest();
        }
        let kept = books.agents.entry(name).or_default();
        if kept.len() == KEPT {
            kept.pop_front();
        }
        kept.push_back(Arc::clone(&event));
        if let Some(followers) = books.teams.get(team) {
            // Nobody listening is fine.
            let _ = followers.send(event);
        }
    }

    /// Follows an agent, or all of a team. After `last` comes everything that is still kept, else the last ten.
    pub(crate) fn follow(
        self: &Arc<Self>,
        team: &TeamId,
        agent: Option<String>,
        last: Option<u64>,
        caller: &str,
    ) -> Result<Following, TooManyFollowers> {
        let mut books = self.books.lock().unwrap_or_else(PoisonError::into_inner);
        let count = books.followers.entry(caller.to_owned()).or_default();
        if *count >= MOST_FOLLOWERS {
            return Err(TooManyFollowers);
        }
        *count += 1;
        let missed = books.missed(team, agent.as_deref(), last);
        let sender = books.teams.entry(team.clone()).or_insert_with(|| broadcast::channel(BEHIND).0);
        let place = FollowerPlace { hub: Arc::clone(self), caller: caller.to_owned() };
        Ok(Following { missed, coming: sender.subscribe(), agent, _place: place })
    }
}

impl Books {
    fn missed(&self, team: &TeamId, agent: Option<&str>, last: Option<u64>) -> VecDeque<Arc<HubEvent>> {
        let is_wanted = |(owner, name): &&(TeamId, Option<String>)| {
            owner == team && agent.is_none_or(|agent| name.as_deref() == Some(agent))
        };
        let names = self.agents.keys().filter(is_wanted);
        let kept = names.filter_map(|name| self.agents.get(name)).flatten().cloned();
        let mut events: Vec<_> = kept.filter(|event| last.is_none_or(|last| event.id > last)).collect();
        events.sort_unstable_by_key(|event| event.id);
        if last.is_none() {
            events.drain(..events.len().saturating_sub(REPLAYED));
        }
        events.into()
    }

    fn forget_the_quietest(&mut self) {
        let quietest = self.agents.iter().min_by_key(|(_, events)| events.back().map_or(0, |event| event.id));
        if let Some(name) = quietest.map(|(name, _)| name.clone()) {
            self.agents.remove(&name);
        }
    }
}

impl Drop for FollowerPlace {
    fn drop(&mut self) {
        let mut books = self.hub.books.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = books.followers.get_mut(&self.caller) {
            *count -= 1;
            if *count == 0 {
                books.followers.remove(&self.caller);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn team() -> TeamId {
        TeamId("t".to_owned())
    }

    /// S2.24: the last ten are told again, or all since the last one that was seen; each agent has its own.
    #[tokio::test]
    async fn who_comes_late_is_told_what_was_missed_and_who_follows_sees_the_rest() {
        let hub = Hub::new();
        for number in 0..150 {
            hub.publish(&team(), Some("a"), "command_output", json!(number));
            hub.publish(&team(), Some("b"), "command_output", json!(-number));
        }
        let follow = |last| hub.follow(&team(), Some("a".to_owned()), last, "me").unwrap();
        let late = follow(None);
        let values: Vec<_> = late.missed.iter().map(|event| event.data.as_i64().unwrap()).collect();
        assert_eq!(values, (140..150).collect::<Vec<_>>());
        let back = follow(Some(late.missed[6].id));
        assert_eq!(back.missed.len(), 3);
        assert_eq!(follow(Some(0)).missed.len(), KEPT);
        let mut live = follow(None);
        hub.publish(&team(), Some("a"), "sandbox_status", json!("running"));
        assert_eq!(live.coming.recv().await.unwrap().kind, "sandbox_status");
        assert!(hub.follow(&TeamId("other".to_owned()), None, Some(0), "x").unwrap().missed.is_empty());
    }

    #[test]
    fn an_eleventh_stream_is_refused_until_one_ends() {
        let hub = Hub::new();
        let mut ten: Vec<_> = (0..10).map(|_| hub.follow(&team(), None, None, "me").unwrap()).collect();
        assert_eq!(hub.follow(&team(), None, None, "me").unwrap_err(), TooManyFollowers);
        assert!(hub.follow(&team(), None, None, "you").is_ok());
        ten.pop();
        assert!(hub.follow(&team(), None, None, "me").is_ok());
    }
}
